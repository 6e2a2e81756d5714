"""Peak memory and speed of one attention, forward and backward: the fused path against the explicit one.

    python -m benchmarks.memory

Each figure is measured in a separate process: on a CPU the growth of peak resident memory, on a GPU the allocator's
peak.
"""

import resource
import subprocess
import sys
from contextlib import nullcontext

import torch

from benchmarks.common import record, table
from minitx.hardware.machine import finished_at
from minitx.interpret.recording import record_attention
from minitx.nn import MultiHeadAttention

LENGTHS = (512, 1024, 2048, 4096, 8192)
PATHS = ("fused", "explicit")
D_MODEL, HEADS = 256, 8


def peak(path: str, tokens: int) -> tuple[float, float]:
    """Peak memory of a causal self-attention over one sequence in MiB, and tokens per second of its second call."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    attention = MultiHeadAttention(D_MODEL, HEADS).to(device)
    attention(torch.randn(1, 8, D_MODEL, device=device), causal=True).sum().backward()  # torch's own buffers
    x = torch.randn(1, tokens, D_MODEL, device=device, requires_grad=True)
    torch.cuda.reset_peak_memory_stats() if device == "cuda" else None
    before = _highest(device)
    with record_attention(attention) if path == "explicit" else nullcontext():
        attention(x, causal=True).sum().backward()
        highest = _highest(device) - before
        began = finished_at(device)
        attention(x, causal=True).sum().backward()
    return highest, tokens / (finished_at(device) - began)


def _highest(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    if len(sys.argv) == 3:
        print(*peak(sys.argv[1], int(sys.argv[2])))
        return
    rows = []
    for tokens in LENGTHS:
        row: dict[str, float] = {"tokens": tokens}
        for path in PATHS:
            command = [sys.executable, "-m", "benchmarks.memory", path, str(tokens)]
            fields = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            row[path], row[f"{path} speed"] = round(float(fields[0]), 1), round(float(fields[1]))
        rows.append(row)
    header = ["tokens", "fused, MiB", "explicit, MiB", "explicit / fused", "fused, tokens/s", "explicit, tokens/s"]
    lines = [
        [
            f"{row['tokens']:,}",
            row["fused"],
            f"{row['explicit']:,}",
            f"{row['explicit'] / row['fused']:.1f}",
            f"{row['fused speed']:,}",
            f"{row['explicit speed']:,}",
        ]
        for row in rows
    ]
    text = table(header, lines)
    what = f"Causal self-attention, d_model {D_MODEL}, {HEADS} heads, batch 1, fp32, forward and backward:"
    record("memory", rows, f"{what}\n\n{text}", "attention.md")


if __name__ == "__main__":
    main()
