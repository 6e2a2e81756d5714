"""The cost of tracing residual streams: time added to a forward, and memory kept.

    python -m benchmarks.tracing

Processor seconds of one thread, which a busy machine changes little. Plain and traced forwards take turns; each traced
forward opens its own block, except in the column "within one block".
"""

import time
from collections.abc import Callable
from statistics import quantiles
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
SECONDS = 3.0
"""Measured for each model and choice of names."""


def seconds(function: Callable[[], Any]) -> float:
    """Processor seconds."""
    start = time.process_time()
    function()
    return time.process_time() - start


@torch.no_grad()
def measured(what: str) -> dict[str, Any]:
    """Milliseconds of a plain forward, and the shares that tracing adds to it."""
    config, rows, tokens = RUNS[what]
    model = build_model(config, 64).eval()
    inputs = [torch.randint(0, 64, (rows, tokens)) for _ in range(1 + hasattr(model, "encode"))]

    def traced(only: str) -> dict[str, torch.Tensor]:
        with trace(model, only) as t:
            model(*inputs)
        return t

    def added(only: str) -> tuple[float, float]:
        """Seconds of a plain forward, and the share that tracing adds, by the first decile of alternating forwards."""
        times: list[tuple[float, float]] = []
        start = time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            times.append((seconds(lambda: model(*inputs)), seconds(lambda: traced(only))))
        plain, own = (quantiles(part, n=10)[0] for part in zip(*times, strict=True))
        return plain, own / plain - 1

    def added_within() -> float:
        """The same for forwards within one block, in turns of twenty."""
        times: tuple[list[float], list[float]] = ([], [])
        start = time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            times[0].extend(seconds(lambda: model(*inputs)) for _ in range(20))
            with trace(model, "*.resid_*"):
                times[1].extend(seconds(lambda: model(*inputs)) for _ in range(20))
        plain, own = (quantiles(part, n=10)[0] for part in times)
        return own / plain - 1

    plain, resid = added("*.resid_*")
    kept = traced("*.resid_post").values()
    return {
        "model": what,
        "milliseconds": round(1e3 * plain, 2),
        "resid": round(resid, 3),
        "resid_within": round(added_within(), 3),
        "all": round(added("*")[1], 3),
        "activations": len(sites(model)),
        "resid_post_bytes": sum(value.numel() * value.element_size() for value in kept),
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = [measured(what) for what in RUNS]
    text = table(
        ["model", "a forward", "tracing `*.resid_*` adds", "within one block", "tracing all names adds"],
        [
            [row["model"], f"{row['milliseconds']:.1f} ms"]
            + [f"{100 * row[name]:.0f} %" for name in ("resid", "resid_within", "all")]
            for row in rows
        ],
    )
    record("tracing", rows, text, "howto/trace.md")


if __name__ == "__main__":
    main()
