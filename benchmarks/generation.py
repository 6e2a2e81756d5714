"""Tokens generated per second: minitx against Hugging Face's generate and x-transformers, each with its cache.

    python -m benchmarks.generation

Random weights, equal sizes (4 layers, d_model 128, 4 heads, learned positions, a prompt of 16 tokens), no end token,
greedy or 4 beams. All take turns in one process, so that a slow machine affects them equally. The best round counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.common import record, table
from minitx import ModelConfig, build_model
from minitx.generation.beam import beam_search
from minitx.generation.decode import generate
from minitx.hardware.devices import finished_at

VOCABULARY, PROMPT, D_MODEL, HEADS, LAYERS = 256, 16, 128, 4, 4
CASES = (("batch 1", 1, 1, 256), ("batch 16", 16, 1, 256), ("batch 64", 64, 1, 256), ("4 beams, batch 8", 8, 4, 256))
LENGTHS = (256, 1024, 4096)
ROUNDS = 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Write = Callable[[torch.Tensor, int, int], Any]
"""A function that generates, given a prompt [B, P], beams and new tokens."""


def compiled(max_len: int) -> Write:
    """minitx with a compiled step, as in `minitx generate --compile`."""
    return ours(max_len, compiled=True)


def ours(max_len: int, compiled: bool = False) -> Write:
    config = ModelConfig(
        architecture="decoder_only",
        d_model=D_MODEL,
        n_heads=HEADS,
        n_layers=LAYERS,
        vocab_size=VOCABULARY,
        position={"name": "learned", "max_len": max_len},
    )
    model: Any = build_model(config).eval().to(DEVICE)

    def write(ids: torch.Tensor, beams: int, tokens: int) -> Any:
        if beams > 1:
            return beam_search(model, ids, num_beams=beams, max_new_tokens=tokens, eos=-1, pad=0)
        return generate(model, ids, max_new_tokens=tokens, eos=-1, pad=0, compiled=compiled)

    return write


def hugging_face(max_len: int) -> Write:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=max_len, n_embd=D_MODEL, n_layer=LAYERS, n_head=HEADS,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval().to(DEVICE)

    def write(ids: torch.Tensor, beams: int, tokens: int) -> Any:
        mask = torch.ones_like(ids)
        options = {"max_new_tokens": tokens, "num_beams": beams, "do_sample": False, "use_cache": True}
        return model.generate(ids, attention_mask=mask, **options)

    return write


def x_transformers(max_len: int) -> Write:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=D_MODEL, depth=LAYERS, heads=HEADS, attn_dim_head=D_MODEL // HEADS, attn_flash=True)
    wrapped = TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=max_len, attn_layers=layers)
    model = AutoregressiveWrapper(wrapped).eval().to(DEVICE)

    def write(ids: torch.Tensor, beams: int, tokens: int) -> Any:
        if beams > 1:
            return model.beam_search(ids, tokens, beams=beams, cache_kv=True)
        return model.generate(ids, tokens, temperature=0.0, cache_kv=True)

    return write


def speed(write: Write, batch: int, beams: int, tokens: int) -> float:
    """Generated tokens per second in one round."""
    ids = torch.randint(6, VOCABULARY, (batch, PROMPT), device=DEVICE)
    began = time.perf_counter()
    with torch.inference_mode():
        write(ids, beams, tokens)
    return batch * tokens / (finished_at(DEVICE) - began)


def main() -> None:
    makers: dict[str, Callable[[int], Write]] = {
        "minitx": ours,
        "minitx --compile": compiled,
        "transformers": hugging_face,
    }
    if find_spec("x_transformers"):
        makers["x-transformers"] = x_transformers
    rows: list[dict[str, Any]] = []
    writers = {name: make(1024) for name, make in makers.items()}
    for name, batch, beams, tokens in CASES:
        best = dict.fromkeys(writers, 0.0)
        for _ in range(ROUNDS):
            for who, write in writers.items():
                if beams == 1 or who != "minitx --compile":  # beams do not use a compiled step
                    best[who] = max(best[who], speed(write, batch, beams, tokens))
        rows.append({"case": name, **{who: round(figure) for who, figure in best.items()}})
        print(rows[-1], flush=True)
    others = [who for who in writers if not who.startswith("minitx")]
    cells = []
    for row in rows:
        best_of_ours = max(row["minitx"], row["minitx --compile"])
        ratios = [
            f"{row['minitx'] / row[who]:.1f}x, {best_of_ours / row[who]:.1f}x" if row[who] else "-" for who in others
        ]
        cells.append([row["case"], *(f"{row[who]:,}" if row[who] else "-" for who in writers), *ratios])
    text = table(["256 new tokens", *writers, *(f"plain and best relative to {who}" for who in others)], cells)
    lengths = []
    write = ours(max(LENGTHS) + PROMPT)
    for tokens in LENGTHS:
        lengths.append({"new tokens": tokens, "minitx": round(max(speed(write, 1, 1, tokens) for _ in range(2)))})
    text += "\n\n" + table(["new tokens, batch 1", "minitx"], [[r["new tokens"], f"{r['minitx']:,}"] for r in lengths])
    record("generation", rows + lengths, f"Tokens per second, fp32:\n\n{text}", "generation.md")


if __name__ == "__main__":
    main()
