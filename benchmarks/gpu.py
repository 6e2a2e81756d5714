"""Measurements that need a GPU: utilization by a large model, and the speed of a tiny one with CUDA graphs.

    python -m benchmarks.gpu --nanogpt FOLDER

Without a GPU it runs at a small size, as a test, and records nothing. Races are those of benchmarks.training.
"""

from __future__ import annotations

import argparse
import functools
import time
from dataclasses import asdict
from typing import Any

import torch

from benchmarks import peers
from benchmarks.common import record, table
from benchmarks.peers import DEVICE, Missing, Size
from benchmarks.training import GPU_SIZES, Contestant, races, ratio, speed
from minitx.hardware.devices import finished_at

LARGE, TINY = GPU_SIZES[0], Size("tiny decoder: 2 layers, d 64, 32 tokens x 64", 2, 64, 2, 32, 64, 16)
SMALL_LARGE = Size("small decoder: 2 layers, d 128, 128 tokens x 4", 2, 128, 4, 128, 4, 1000)
PEAKS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""Floating-point operations per second of dense bf16 products with fp32 sums, from the data sheets."""


def step_flops(size: Size, parameters: int) -> int:
    """FLOPs of a decoder's forward and backward: 6 per weight and token, and those of attention's two products.

    The count of Chowdhery et al. 2022, appendix B, does not subtract masked products. The position table is excluded.
    """
    weights = parameters - size.length * size.d_model
    return size.tokens * (6 * weights + 12 * size.layers * size.d_model * size.length)


def peak() -> float:
    """Peak floating-point operations per second: of a known card, or measured with a large matrix product."""
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else ""
    for card, operations in PEAKS.items():
        if card in name:
            return operations
    width, times = (8192, 20) if DEVICE == "cuda" else (2048, 5)
    one = torch.randn(width, width, device=DEVICE, dtype=torch.bfloat16)
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        one @ one
        seconds.append(finished_at(DEVICE) - began)
    return 2 * width**3 / min(seconds)


def utilization(size: Size, nanogpt: str | None) -> dict[str, Any]:
    """minitx and nanoGPT, both compiled, in bf16; minitx alone where nanoGPT is not installed."""
    pair = {
        "minitx": Contestant(peers.minitx, size, bf16=True, mode="default"),
        "nanoGPT": Contestant(functools.partial(peers.nanogpt, folder=nanogpt), size, bf16=True, mode="default"),
    }
    missing = None
    try:
        found, parameters = races(pair)
    except Missing as reason:
        missing = str(reason)
        found, parameters = races({"minitx": pair["minitx"]})
    flops = step_flops(size, parameters["minitx"])
    about = {"size": asdict(size), "tokens": size.tokens, "flops": flops, "peak": peak()}
    return {**about, "races": found, "missing": missing}


def graphs(size: Size) -> dict[str, Any]:
    """minitx with and without CUDA graphs."""
    found, _ = races(
        {
            "minitx": Contestant(peers.minitx, size, bf16=True, mode="reduce-overhead"),
            "eager": Contestant(peers.minitx, size, bf16=True),
        }
    )
    return {"size": asdict(size), "races": found}


def summary(large: dict[str, Any], tiny: dict[str, Any]) -> str:
    """The table."""
    step, name = large["tokens"] / speed(large["races"], "minitx", large["tokens"]), large["size"]["name"]
    used = f"{large['flops'] / step / large['peak']:.1%} of {large['peak'] / 1e12:,.1f} TFLOP/s; {1e3 * step:,.1f} ms"
    peer = large["missing"] or f"{ratio(large['races'], 'nanoGPT'):.2f}x"
    rows = [
        [f"{name}: model FLOPs utilization, bf16, compiled", "50 %", f"{used} per step"],
        ["the same, relative to compiled nanoGPT", "1.0x", peer],
        [
            f"{tiny['size']['name']}: speed with CUDA graphs relative to eager",
            "5x",
            f"{ratio(tiny['races'], 'eager'):.2f}x",
        ],
    ]
    return table(["", "target", "measured"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", default=None, help="a clone of karpathy/nanoGPT")
    given = parser.parse_args()
    large = utilization(LARGE if DEVICE == "cuda" else SMALL_LARGE, given.nanogpt)
    tiny = graphs(TINY)
    if DEVICE == "cuda":
        record("gpu", [large, tiny], summary(large, tiny), "performance.md")
    else:
        print(f"{summary(large, tiny)}\n\nNo GPU: a small size, no CUDA graphs, and nothing is recorded.")


if __name__ == "__main__":
    main()
