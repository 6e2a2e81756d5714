"""The cost of tracing residual streams: time added to a forward, and memory kept.

    python -m benchmarks.tracing

One thread. Plain and traced forwards take turns, so that a busy machine slows both; each traced forward opens its own
block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.common import record, table
from minitx import ModelConfig, build_model, trace
from minitx.interpret.sites import sites

RUNS: dict[str, tuple[ModelConfig, int, int]] = {
    "reversal (`configs/reverse.yaml`), 64 x 16 tokens": (
        ModelConfig(architecture="encoder_decoder", d_model=64, n_heads=2, n_layers=2), 64, 16,
    ),
    "reversal, one example": (ModelConfig(architecture="encoder_decoder", d_model=64, n_heads=2, n_layers=2), 1, 16),
    "0.8 million parameters, 4 x 128 tokens": (
        ModelConfig(architecture="decoder_only", d_model=128, n_heads=4, n_layers=4), 4, 128,
    ),
    "0.8 million parameters, one example": (
        ModelConfig(architecture="decoder_only", d_model=128, n_heads=4, n_layers=4), 1, 128,
    ),
}  # fmt: skip
"""Model, batch size and tokens."""
SECONDS = 6.0
"""Measured for each model."""


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@torch.no_grad()
def measured(what: str) -> dict[str, Any]:
    """Ratios of the medians of alternating forwards."""
    config, rows, tokens = RUNS[what]
    model = build_model(config, 64).eval()
    inputs = [torch.randint(0, 64, (rows, tokens)) for _ in range(1 + hasattr(model, "encode"))]

    def traced(only: str) -> dict[str, torch.Tensor]:
        with trace(model, only) as t:
            model(*inputs)
        return t

    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: model(*inputs), "resid": lambda: traced("*.resid_*"), "all": lambda: traced("*"),
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in ways}
    start = time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        for name, way in ways.items():
            times[name].append(seconds(way))
    plain = median(times["plain"])
    kept = traced("*.resid_post").values()
    return {
        "model": what,
        "milliseconds": round(1e3 * plain, 2),
        "resid": round(median(times["resid"]) / plain - 1, 3),
        "all": round(median(times["all"]) / plain - 1, 3),
        "activations": len(sites(model)),
        "resid_post_bytes": sum(value.numel() * value.element_size() for value in kept),
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = [measured(what) for what in RUNS]
    text = table(
        ["model", "a forward", "tracing `*.resid_*` adds", "tracing all names adds"],
        [
            [row["model"], f"{row['milliseconds']:.1f} ms", f"{100 * row['resid']:.0f} %", f"{100 * row['all']:.0f} %"]
            for row in rows
        ],
    )
    record("tracing", rows, text, "howto/trace.md")


if __name__ == "__main__":
    main()
