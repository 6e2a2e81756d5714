"""Growth of the cost of a training step with layers, width, tokens and batch: fitted exponents.

python -m benchmarks.growth
"""

import dataclasses
import statistics
from typing import Any

import numpy as np
import torch

from benchmarks import peers
from benchmarks.common import record, table
from benchmarks.peers import Size
from benchmarks.training import stepper, timed
from minitx.hardware.devices import resolve_precision

BASE = Size("base", 4, 256, 4, 256, 8, 256)
AXES: dict[str, tuple[int, ...]] = {
    "layers": (2, 4, 8, 16),
    "d_model": (128, 256, 512, 1024),
    "length": (256, 512, 1024, 2048, 4096),
    "batch": (2, 4, 8, 16, 32),
}
AXIS_NAMES = {
    "layers": "layers",
    "d_model": "width d",
    "length": "tokens T in a sequence",
    "batch": "sequences in a batch",
}
EXPECTED = {
    "layers": "1 or less: head and embedding do not grow",
    "d_model": "1 to 2: matrix products are quadratic in d, the rest linear",
    "length": "1 to 2: attention is quadratic in T, the rest linear",
    "batch": "1 or less: the update of the weights does not grow",
}
ROUNDS = 9


def seconds(sizes: list[Size]) -> list[float]:
    """Median seconds of one training step of each size; the sizes take turns, so that a slow phase affects all."""
    bf16 = resolve_precision("auto", "auto") == "bf16-mixed"
    steps = [stepper(peers.minitx(size), size.ids(), bf16, None) for size in sizes]
    for step in steps:
        timed(step, 2)
    rounds = [[timed(step, 1) for step in steps] for _ in range(ROUNDS)]
    return [statistics.median(taken) for taken in zip(*rounds, strict=True)]


def main() -> None:
    torch.manual_seed(1)
    rows: list[dict[str, Any]] = []
    lines = []
    for axis, values in AXES.items():
        base = dataclasses.replace(BASE, batch=2) if axis == "length" else BASE
        changes: list[dict[str, Any]] = [{axis: value} for value in values]
        taken = seconds([dataclasses.replace(base, **change) for change in changes])
        exponent = float(np.polyfit(np.log(values), np.log(taken), 1)[0])
        last = float(np.log(taken[-1] / taken[-2]) / np.log(values[-1] / values[-2]))
        rows.append({"axis": axis, "values": values, "seconds": taken, "exponent": exponent, "last": last})
        times = ", ".join(f"{value:,}: {1e3 * each:,.0f}" for value, each in zip(values, taken, strict=True))
        lines.append([AXIS_NAMES[axis], times, f"{exponent:.2f}", f"{last:.2f}", EXPECTED[axis]])
        print(lines[-1], flush=True)
    header = ["varied", "ms per step", "exponent", "exponent of the last doubling", "expected"]
    base_size = f"{BASE.layers} layers, d {BASE.d_model}, {BASE.length} tokens x {BASE.batch} (x 2 if tokens vary)"
    record("growth", rows, f"{base_size}, one of them varied:\n\n{table(header, lines)}", "performance.md")


if __name__ == "__main__":
    main()
