"""Reversal to 100 %: every position scheme in every architecture that can express it.

    python -m benchmarks.schemes             all runs, then the table
    python -m benchmarks.schemes 0 2         every second run, from the first: for two parallel processes

Finished runs are not repeated. Seconds are processor seconds, which a busy machine changes little.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import record, table
from minitx.config.schema import config_from_dict
from minitx.training.api import train_config as train

FOLDER = Path("runs/benchmark_schemes")
ARCHITECTURES = ("encoder_decoder", "decoder_only", "encoder_only")
# Layers, heads and steps: a sufficient size, or the largest one tried. Left out: `none` in encoders and `alibi` in an
# encoder_decoder, which cannot express reversal (docs/positions.md).
RUNS: dict[tuple[str, str], tuple[int, int, int]] = {
    ("encoder_only", "rope"): (4, 4, 16_000),
    ("encoder_only", "transformer_xl"): (4, 4, 16_000),
    ("encoder_only", "t5"): (4, 8, 16_000),
    ("encoder_only", "alibi"): (4, 8, 16_000),
    ("decoder_only", "alibi"): (3, 4, 12_000),
    ("decoder_only", "none"): (3, 4, 12_000),
    ("encoder_decoder", "rope"): (3, 4, 8_000),
    ("encoder_decoder", "transformer_xl"): (3, 4, 8_000),
    ("encoder_decoder", "t5"): (3, 4, 8_000),
    ("decoder_only", "t5"): (3, 4, 8_000),
    ("encoder_decoder", "sinusoidal"): (2, 4, 2_000),
    ("encoder_decoder", "learned"): (2, 4, 2_000),
    ("decoder_only", "sinusoidal"): (2, 4, 2_000),
    ("decoder_only", "learned"): (2, 4, 2_000),
    ("decoder_only", "rope"): (2, 4, 3_000),
    ("decoder_only", "transformer_xl"): (2, 4, 2_000),
    ("encoder_only", "learned"): (2, 4, 2_000),
    ("encoder_only", "sinusoidal"): (2, 2, 2_000),
}
POST_NORM = {("encoder_only", "sinusoidal")}  # as configs/reverse.yaml; pre-norm stayed at 71 % after 4,000 steps
OPTIONS = {"learned": {"max_len": 64}, "t5": {"buckets": 64, "max_distance": 64}}


def config(architecture: str, scheme: str, layers: int, heads: int, steps: int) -> dict[str, Any]:
    """Pre-norm layers of width 64 (except POST_NORM); only depth, heads and number of steps differ."""
    post_norm = (architecture, scheme) in POST_NORM
    rate = 5e-3 if post_norm else 3e-3 if layers < 4 else 2e-3
    return {
        "run": {"name": f"{architecture}-{scheme}-{layers}x{heads}-{steps}", "folder": str(FOLDER)},
        "data": {"name": "reverse", "symbols": 10, "length": [1, 16], "batch_size": 64},
        "model": {
            "architecture": architecture,
            "d_model": 64,
            "n_heads": heads,
            "n_layers": layers,
            "norm_first": not post_norm,
            "activation": "relu" if post_norm else "gelu",
            "position": {"name": scheme, **OPTIONS.get(scheme, {})},
        },
        "optimizer": {
            "lr": rate,
            "weight_decay": 0.1,
            "schedule": {"name": "cosine", "warmup_steps": 100, "final_ratio": 0.01},
        },
        "trainer": {"max_steps": steps, "val_every_n_steps": max(1000, steps // 4)},
        "log": {"attention": {"every_n_validations": 0}},
    }


def run(architecture: str, scheme: str, layers: int, heads: int, steps: int) -> dict[str, Any]:
    """Train, or read the result of an earlier call."""
    plain = config(architecture, scheme, layers, heads, steps)
    kept = FOLDER / f"{plain['run']['name']}.json"
    if not kept.exists():
        began = time.process_time()
        found = train(config_from_dict(plain))
        row = {"architecture": architecture, "scheme": scheme, "layers": layers, "heads": heads, "steps": steps}
        row |= {"core_seconds": round(time.process_time() - began), "exact_match": found["exact_match"]}
        kept.write_text(json.dumps(row), encoding="utf-8")
    loaded: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return loaded


def main() -> None:
    torch.set_num_threads(1)
    first, step = (int(word) for word in sys.argv[1:3]) if len(sys.argv) == 3 else (0, 1)
    rows = [run(*pair, *size) for pair, size in list(RUNS.items())[first::step]]
    if step > 1:
        return
    found = {(row["architecture"], row["scheme"]): row for row in rows}
    schemes = dict.fromkeys(row["scheme"] for row in sorted(rows, key=lambda row: row["steps"]))

    def cell(architecture: str, scheme: str) -> str:
        row = found.get((architecture, scheme))
        if row is None:
            return "cannot"
        exact = f"{100 * row['exact_match']:.2f} %"
        return (
            f"{exact}: {row['steps']:,} steps, {row['core_seconds']} s, {row['layers']} layers of {row['heads']} heads"
        )

    text = table(["", *ARCHITECTURES], [[name, *(cell(kind, name) for kind in ARCHITECTURES)] for name in schemes])
    record("schemes", rows, text, "positions.md")


if __name__ == "__main__":
    main()
