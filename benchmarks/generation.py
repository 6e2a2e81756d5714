"""Tokens generated per second: minitx against Hugging Face's generate and x-transformers, each with its cache.

    python -m benchmarks.generation
    python -m benchmarks.generation ratios         ratios of CPU time alone, printed and not recorded

Random weights, equal sizes, learned positions, a prompt of 16 tokens, no end token, greedy or 4 beams. All take turns
in one process, so that a slow machine affects them equally. The best round counts.
"""

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from benchmarks.common import record, table
from minitx import ModelConfig, build_model
from minitx.compilation.compiled_step import CompiledStep
from minitx.generation.beam import beam_search
from minitx.generation.decode import generate
from minitx.hardware.machine import finished_at


class Size(NamedTuple):
    """Size of a model."""

    vocabulary: int
    d_model: int
    heads: int
    layers: int


SMALL = VOCABULARY, D_MODEL, HEADS, LAYERS = Size(256, 128, 4, 4)
SIZES = {"0.8M": SMALL, "10.8M": Size(256, 384, 6, 6), "124M, as GPT-2": Size(50257, 768, 12, 12)}
"""By number of parameters."""
PROMPT = 16
CASES = {
    "0.8M": (
        ("batch 1", 1, 1, 256),
        ("batch 16", 16, 1, 256),
        ("batch 64", 64, 1, 256),
        ("4 beams, batch 8", 8, 4, 256),
    ),
    "10.8M": (("batch 1", 1, 1, 128), ("batch 4", 4, 1, 128), ("batch 16", 16, 1, 128), ("batch 64", 64, 1, 128)),
    "124M, as GPT-2": (("batch 1", 1, 1, 64), ("batch 4", 4, 1, 64), ("batch 16", 16, 1, 64)),
}
"""Texts, then batch size, beams and new tokens."""
LENGTHS = (256, 1024, 4096)
ROUNDS = 3
RATIO_TOKENS, RATIO_ROUNDS = 64, 6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Write = Callable[[torch.Tensor, int, int], Any]
"""A function that generates, given a prompt [B, P], beams and new tokens."""


def compiled(max_len: int, size: Size = SMALL) -> Write:
    """minitx with a compiled step, as in `minitx generate --compile`."""
    return ours(max_len, size, compiled=True)


def ours(max_len: int, size: Size = SMALL, compiled: bool = False, sharpness: float = 1.0) -> Write:
    """minitx; sharpness multiplies the weights of the head, so that beams share most of a text, as if trained."""
    config = ModelConfig(
        architecture="decoder_only",
        d_model=size.d_model,
        n_heads=size.heads,
        n_layers=size.layers,
        vocab_size=size.vocabulary,
        position={"name": "learned", "max_len": max_len},
    )
    model: Any = build_model(config).eval().to(DEVICE)
    model.head.weight = torch.nn.Parameter(sharpness * model.head.weight)

    def write(ids: torch.Tensor, beams: int, tokens: int) -> Any:
        options: dict[str, Any] = {"max_new_tokens": tokens, "eos": -1, "pad": 0}
        options["stepper"] = CompiledStep if compiled else None
        return beam_search(model, ids, num_beams=beams, **options) if beams > 1 else generate(model, ids, **options)

    return write


def hugging_face(max_len: int, size: Size = SMALL, llama: bool = False) -> Write:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    config = GPT2Config(
        vocab_size=size.vocabulary, n_positions=max_len, n_embd=size.d_model, n_layer=size.layers, n_head=size.heads,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config).eval().to(DEVICE)
    if llama:
        other = LlamaConfig(
            vocab_size=size.vocabulary, hidden_size=size.d_model, intermediate_size=344, num_hidden_layers=size.layers,
            num_attention_heads=size.heads, max_position_embeddings=max_len,
            bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        model = LlamaForCausalLM(other).eval().to(DEVICE)

    def write(ids: torch.Tensor, beams: int, tokens: int) -> Any:
        mask = torch.ones_like(ids)
        options = {"max_new_tokens": tokens, "num_beams": beams, "do_sample": False, "use_cache": True}
        return model.generate(ids, attention_mask=mask, **options)

    return write


def x_transformers(max_len: int, size: Size = SMALL) -> Write:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    dim_head = size.d_model // size.heads
    layers = Decoder(dim=size.d_model, depth=size.layers, heads=size.heads, attn_dim_head=dim_head, attn_flash=True)
    wrapped = TransformerWrapper(num_tokens=size.vocabulary, max_seq_len=max_len, attn_layers=layers)
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


def ratios() -> list[dict[str, Any]]:
    """CPU time of one thread: a step relative to the same arithmetic without modules, generate relative to the step.

    Contestants alternate, and the fastest of ROUNDS counts.
    """
    rows = []
    for llama in (False, True):
        parts: dict[str, Any] = {"position": {"name": "learned", "max_len": 1024}}
        if llama:
            parts = {
                "position": {"name": "rope"},
                "norm": "rmsnorm",
                "activation": "swiglu",
                "bias": False,
                "d_ff": 344,
            }
        config = ModelConfig(
            architecture="decoder_only", d_model=D_MODEL, n_heads=HEADS, n_layers=LAYERS, vocab_size=VOCABULARY, **parts
        )
        model: Any = build_model(config).eval().to(DEVICE)
        theirs = hugging_face(1024, llama=llama)
        for batch in (1, 16, 64):
            ids = torch.randint(6, VOCABULARY, (batch, 1), device=DEVICE)  # short: the prompt is not a step
            racers: dict[str, Callable[[], Any]] = {
                "lean": lean(batch, llama),
                "step": partial(bare_loop, model, ids),
                "generate": partial(
                    generate, model, ids, max_new_tokens=RATIO_TOKENS, eos=VOCABULARY, pad=0, scores=True
                ),
                "transformers": partial(theirs, ids, 1, RATIO_TOKENS),
            }
            rows.append({"parts": "Llama" if llama else "GPT-2", "batch": batch, **fastest(racers)})
    return rows


def fastest(racers: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The least CPU time of each contestant in seconds, after one call that is not timed."""
    best: dict[str, float] = {}
    with torch.inference_mode():
        for turn in range(RATIO_ROUNDS + 1):
            for name, run in racers.items():
                began = time.process_time()
                run()
                seconds = time.process_time() - began
                if turn:
                    best[name] = min(best.get(name, seconds), seconds)
    return best


def bare_loop(model: Any, ids: torch.Tensor) -> None:
    """Greedy decoding without scores, ends or text."""
    cache = model.start()
    logits = model.step(ids, cache)[:, -1]
    for _ in range(RATIO_TOKENS - 1):
        logits = model.step(logits.argmax(dim=-1, keepdim=True), cache)[:, -1]


def lean(batch: int, llama: bool) -> Callable[[], None]:
    """Greedy decoding of RATIO_TOKENS by torch calls alone: allocated caches, fused projections, random weights."""
    width, size = D_MODEL // HEADS, 344 if llama else 4 * D_MODEL
    w: dict[str, torch.Tensor] = {
        "qkv": torch.randn(3 * D_MODEL, D_MODEL), "out": torch.randn(D_MODEL, D_MODEL),
        "up": torch.randn(2 * size if llama else size, D_MODEL), "down": torch.randn(D_MODEL, size),
    }  # fmt: skip
    ones, zeros, bias = torch.ones(D_MODEL), torch.zeros(D_MODEL), None if llama else torch.zeros(3 * D_MODEL)
    up_bias = None if llama else torch.zeros(size)
    table, places = torch.randn(VOCABULARY, D_MODEL), torch.randn(1 + RATIO_TOKENS, D_MODEL)
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    shape = (batch, HEADS, 1 + RATIO_TOKENS, width)
    caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(LAYERS)]

    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (D_MODEL,), ones) if llama else F.layer_norm(x, (D_MODEL,), ones, zeros)

    def run() -> None:
        ids = torch.randint(VOCABULARY, (batch,))
        for pos in range(1, 1 + RATIO_TOKENS):
            x = F.embedding(ids, table)
            if llama:
                angle = pos * frequencies
                cos, sin = torch.cat((angle.cos(), angle.cos())), torch.cat((-angle.sin(), angle.sin()))
            else:
                x = x + places[pos]
            for keys, values in caches:
                qkv = F.linear(norm(x), w["qkv"], bias).view(batch, 3 * HEADS, width)
                qk = qkv[:, : 2 * HEADS]
                if llama:
                    qk = qk * cos + torch.roll(qk, width // 2, -1) * sin
                keys[:, :, pos], values[:, :, pos] = qk[:, HEADS:], qkv[:, 2 * HEADS :]
                past = keys[:, :, : pos + 1], values[:, :, : pos + 1]
                attended = F.scaled_dot_product_attention(qk[:, :HEADS].unsqueeze(2), *past)
                x = x + F.linear(attended.reshape(batch, D_MODEL), w["out"])
                inner = F.linear(norm(x), w["up"], up_bias)
                if llama:
                    gate, inner = inner.chunk(2, -1)
                    inner = F.silu(gate) * inner
                else:
                    inner = F.gelu(inner)
                x = x + F.linear(inner, w["down"])
            ids = F.linear(norm(x), table).argmax(-1)

    return run


def pairs() -> dict[str, float]:
    """The same for an encoder-decoder: 2 + 2 layers of width 64, 32 questions of 16 tokens, answers of 16."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = ModelConfig(architecture="encoder_decoder", d_model=64, n_heads=4, n_layers=2, vocab_size=VOCABULARY)
    model: Any = build_model(config).eval()
    layers: dict[str, Any] = {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    }
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 64, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256}
    special: dict[str, Any] = {"bos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 1}
    special |= {"eos_token_id": None, "forced_eos_token_id": None}
    theirs: Any = BartForConditionalGeneration(BartConfig(**layers, **sizes, **special)).eval()
    source, start = torch.randint(6, VOCABULARY, (32, 16)), torch.ones(32, 1, dtype=torch.long)
    options: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "num_beams": 1}
    racers = {
        "generate": partial(generate, model, start, source, max_new_tokens=16, eos=VOCABULARY, pad=0, scores=True),
        "transformers": partial(theirs.generate, source, attention_mask=torch.ones_like(source), **options),
    }
    return fastest(racers)


def print_ratios() -> None:
    """CPU-time ratios, one thread."""
    torch.set_num_threads(1)
    for row in ratios():
        step = row["step"]
        print(
            f"{row['parts']} parts, batch {row['batch']}: step {1e6 * step / RATIO_TOKENS:,.0f} us, "
            f"{step / row['lean']:.2f}x lean; generate {row['generate'] / step:.2f}x step; "
            f"{row['transformers'] / step:.2f}x transformers (generate {row['transformers'] / row['generate']:.2f}x)",
            flush=True,
        )
    ids = torch.randint(6, VOCABULARY, (8, PROMPT))
    writers = {"random": ours(1024), "sharp": ours(1024, sharpness=10.0), "them": hugging_face(1024)}
    for tokens in (RATIO_TOKENS, 4 * RATIO_TOKENS):
        beams = fastest({name: partial(write, ids, 4, tokens) for name, write in writers.items()})
        figures = ", ".join(f"{beams['them'] / beams[name]:.2f}x for {name} logits" for name in ("random", "sharp"))
        print(f"4 beams, batch 8, {tokens} tokens, relative to transformers: {figures}", flush=True)
    row = pairs()
    print(f"encoder-decoder, batch 32: {row['transformers'] / row['generate']:.2f}x transformers", flush=True)


def measured(makers: Mapping[str, Callable[[int, Size], Write]]) -> list[dict[str, Any]]:
    """Tokens per second of all contestants in all cases."""
    rows = []
    for model, cases in CASES.items():
        writers = {name: make(1024, SIZES[model]) for name, make in makers.items()}
        for texts, batch, beams, tokens in cases:
            best = dict.fromkeys(writers, 0.0)
            for _ in range(ROUNDS):
                for who, write in writers.items():
                    best[who] = max(best[who], speed(write, batch, beams, tokens))
            figures = {who: round(figure) for who, figure in best.items()}
            rows.append({"parameters": model, "texts": texts, "new tokens": tokens, **figures})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    makers: dict[str, Callable[[int, Size], Write]] = {
        "minitx": ours,
        "minitx --compile": compiled,
        "transformers": hugging_face,
    }
    if find_spec("x_transformers"):
        makers["x-transformers"] = x_transformers
    rows = measured(makers)
    others = [who for who in makers if not who.startswith("minitx")]
    cells = []
    for row in rows:
        best_of_ours = max(row["minitx"], row["minitx --compile"])
        ratios = [f"{row['minitx'] / row[who]:.1f}x, {best_of_ours / row[who]:.1f}x" for who in others]
        about = [f"{row[name]}" for name in ("parameters", "texts", "new tokens")]
        cells.append([*about, *(f"{row[who]:,}" for who in makers), *ratios])
    relative = [f"plain and best relative to {who}" for who in others]
    text = table(["parameters", "texts", "new tokens", *makers, *relative], cells)
    lengths = []
    write = ours(max(LENGTHS) + PROMPT)
    for tokens in LENGTHS:
        lengths.append({"new tokens": tokens, "minitx": round(max(speed(write, 1, 1, tokens) for _ in range(ROUNDS)))})
    text += "\n\n" + table(
        ["new tokens, batch 1, 0.8M parameters", "minitx"], [[r["new tokens"], f"{r['minitx']:,}"] for r in lengths]
    )
    record("generation", rows + lengths, f"Tokens per second, fp32:\n\n{text}", "generation.md")


if __name__ == "__main__":
    print_ratios() if "ratios" in sys.argv else main()
