"""Wall-clock time of short commands, as whole processes.

python -m benchmarks.startup CHECKPOINT        of a small model, such as runs/reverse
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import record, table

ROUNDS = 7
MISSPELT = "--model.d_modl"


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    commands = {
        "`minitx --help`": ["--help"],
        "`minitx train --help`": ["train", "--help"],
        "`minitx train` with a misspelt key": ["train", "--config", "configs/reverse.yaml", MISSPELT, "3"],
        "`minitx generate`, including the answer": ["generate", sys.argv[1], "3 1 4 1 5"],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, words in commands.items():
            began = time.perf_counter()
            done = subprocess.run(
                [Path(sys.executable).with_name("minitx"), *words], capture_output=True, text=True, check=False
            )
            taken[name].append(time.perf_counter() - began)
            if done.returncode != (2 if MISSPELT in words else 0):
                raise SystemExit(f"{name} failed: {done.stderr.strip()}")
    lines = [[name, f"{statistics.median(seconds):.2f} s"] for name, seconds in taken.items()]
    rows = [{"command": name, "seconds": seconds} for name, seconds in taken.items()]
    record("startup", rows, table(["", "median of 7"], lines), "performance.md")


if __name__ == "__main__":
    main()
