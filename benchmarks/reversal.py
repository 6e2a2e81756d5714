"""Reversal to 100.0 %: `minitx train` against the script of the UvA deep-learning tutorial (number 6), whole processes.

    python -m benchmarks.reversal [NOTEBOOK]

NOTEBOOK is Transformers_and_MHAttention.ipynb of github.com/phlippe/uvadlc_notebooks, downloaded by the user. Its
own cells train its own model on its own data; only plotting and the download of a trained model are left out. Both take
turns; the time is wall-clock time from the start of the process to the figures on unseen sequences.
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import record, table

ROUNDS = 3
INCLUDED = (
    "def scaled_dot_product",
    "def expand_mask",
    "class ",
    "dataset = partial(ReverseDataset",
    "def train_reverse",
    "reverse_model,",
)
"""First lines, after comments, of the cells that define and train the tutorial's reversal."""
EXCLUDED = ("SetAnomaly", "AnomalyPredictor", "CIFAR", "%matplotlib")
HEADER = """\
import math, os
from functools import partial
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F, torch.optim as optim, torch.utils.data as data
import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint
CHECKPOINT_PATH, device = ".", torch.device("cpu")
pl.seed_everything(42)
"""
FOOTER = """
print("share of right tokens:", reverse_result["test_acc"])
"""
OURS = {
    "encoder alone": ["configs/reverse_encoder.yaml"],
    "encoder and decoder": ["configs/reverse.yaml"],
    "encoder and decoder, one layer each": ["configs/reverse.yaml", "--model.n_layers", "1"],
}


def tutorial(notebook: Path) -> str:
    """The tutorial's reversal as one script."""
    cells = [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    code = [re.sub(r"\A(\s*#.*\n)+", "", cell) for cell in cells]
    return "\n".join(
        [HEADER, *(c for c in code if c.startswith(INCLUDED) and not any(u in c for u in EXCLUDED)), FOOTER]
    )


def timed(words: list[str], folder: str | None) -> tuple[float, float]:
    """Seconds of a whole process, and the percentage in its output."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=folder, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    right = re.search(r"share of right tokens: ([\d.]+)", done.stdout)
    exact = re.search(r"free-running.* ([\d.]+) %", done.stdout)
    if right is None and exact is None:
        raise SystemExit(f"no figure in: {done.stdout[-2000:]}")
    return seconds, 100 * float(right[1]) if right else float(exact[1])  # type: ignore[index]


def main() -> None:
    notebook = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        if notebook is not None:
            (Path(folder) / "tutorial.py").write_text(tutorial(notebook), encoding="utf-8")
        for number in range(ROUNDS):
            for name, config in OURS.items():
                words = ["train.py", "--config", *config, "--run.folder", folder, "--run.seed", str(number + 1)]
                rows.append({"who": name, "figures": timed(words, None)})
            if notebook is not None:
                rows.append({"who": "tutorial", "figures": timed(["tutorial.py"], folder)})
    lines = []
    for who in [*OURS, "tutorial"]:
        figures = [row["figures"] for row in rows if row["who"] == who]
        what = f"minitx, {who}" if who in OURS else "UvA tutorial 6, encoder alone"
        if not figures:
            lines.append([what, "not run: its notebook was not given", ""])
            continue
        seconds, right = (statistics.median(column) for column in zip(*figures, strict=True))
        unit = "exact match" if who in OURS else "of tokens"
        lines.append([what, f"{seconds:.1f} s", f"{right:.2f} % {unit}"])
    text = table(["", f"from start to figures, median of {ROUNDS}", "on unseen sequences"], lines)
    record("reversal", rows, text, "performance.md")


if __name__ == "__main__":
    main()
