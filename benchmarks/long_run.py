"""Memory and speed over a long run of a small config, with validations, attention, curves and checkpoints.

    python -m benchmarks.long_run

The run is a separate process, `minitx train`; its resident memory and processor time are read at each validation
(Linux). Other programs on the machine affect processor time less than wall-clock time.

The speed of a machine varies over minutes. So a fresh run follows at once, and the last steps of the long run are
compared with the first steps of the fresh one.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common import DOCS, record, table

STEPS, VALIDATED, COMPARED = 50_000, 500, 5_000
SHOWN = (1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 40_000, 50_000)
CONFIG = {
    "run.name": "long",
    "data.name": "reverse",
    "data.length": "[1, 8]",
    "data.batch_size": 16,
    "data.validation_size": 32,
    "data.test_size": 100,
    "model.d_model": 32,
    "model.n_heads": 2,
    "model.n_layers": 1,
    "model.dropout": 0.1,
    "trainer.accelerator": "cpu",
    "trainer.precision": "32-true",
    "trainer.val_every_n_steps": VALIDATED,
    "trainer.save_every_n_steps": VALIDATED,
    "log.every_n_steps": 50,
}


def used(process: int) -> tuple[float, float]:
    """Resident memory of a process in MiB, and its processor time in seconds."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    times = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024, sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def watched(folder: str, steps: int) -> dict[int, tuple[float, float]]:
    """Train for some steps, and return memory and processor time at each validation."""
    words = [f"--{key}={value}" for key, value in {**CONFIG, "trainer.max_steps": steps}.items()]
    command = [sys.executable, str(DOCS.parent / "train.py"), *words, f"--run.folder={folder}"]
    found: dict[int, tuple[float, float]] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found_step := re.match(r"step ([\d,]+)/", line):
                found[int(found_step[1].replace(",", ""))] = used(process.pid)
    if process.returncode:
        raise SystemExit(f"the run ended with code {process.returncode}")
    return found


def step_times(found: dict[int, tuple[float, float]]) -> dict[int, float]:
    """Milliseconds of processor time per step before each validation except the first, which includes the start."""
    return {
        step: round(1e3 * (found[step][1] - found[before][1]) / (step - before), 3)
        for before, step in pairwise(sorted(found))
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = watched(folder, STEPS)
        written = sum(file.stat().st_size for file in Path(folder).rglob("events.*")) / 2**20
        fresh = step_times(watched(folder, COMPARED + VALIDATED))
    times = step_times(found)
    rows: list[dict[str, Any]] = [
        {"step": step, "resident_mib": round(found[step][0], 1), "step_ms": times[step]} for step in times
    ]
    held = {row["step"]: row["resident_mib"] for row in rows}
    lines = [[f"{step:,}", f"{held[step]:,.0f} MiB", f"{times[step]:.2f} ms"] for step in SHOWN]
    first, last = SHOWN[0], SHOWN[-1]
    count = COMPARED // VALIDATED
    early, late, fresh_median = (
        statistics.mean(part) for part in ([*times.values()][:count], [*times.values()][-count:], fresh.values())
    )
    summary = (
        f"{STEPS:,} steps of an encoder-decoder of width 32, {STEPS // VALIDATED} validations with attention maps and "
        f"images, each with a checkpoint: memory {held[last] - held[first]:+.1f} MiB from step {first:,} to step "
        f"{last:,}, at most {max(held.values()):,.0f}; its last {COMPARED:,} steps take {late / fresh_median:.2f}x the "
        f"processor time of the first {COMPARED:,} of a fresh run started right after it, and {late / early:.2f}x that "
        f"of its own first {COMPARED:,}. The event file has {written:.0f} MiB."
    )
    header = ["step", "resident memory", "processor time per step, including validations, logging and checkpoints"]
    rows.append({"fresh_run_step_ms": [*fresh.values()]})
    record("long_run", rows, f"{summary}\n\n{table(header, lines)}", "performance.md")


if __name__ == "__main__":
    main()
