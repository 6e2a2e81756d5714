"""What Lightning's Trainer, our logging and our data add to a bare training loop.

    python -m benchmarks.overhead

The bare loop is the same model, optimiser, schedule, clipping and precision over batches that were drawn before. The
Trainer's step is the difference of a long and a short run of `minitx train`, so that start, validation and test, which
both have, cancel. All in turn, medians; each in a process of its own, because how the C library keeps memory is a
setting of a whole process: `minitx train` lets it keep memory between steps, and the bare loop is measured with and
without.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

from benchmarks.common import record, table
from minitx.config import Config
from minitx.data.loader import TrainingBatches
from minitx.options import config_from_dict
from minitx.training.allocation import kept_memory
from minitx.training.losses import count, cross_entropy
from minitx.training.optim import build_optimizer, build_schedule
from minitx.training.precision import MIXED_DTYPES, resolve_precision
from minitx.training.run import prepare, train

SHORT, LONG, ROUNDS = 100, 700, 5


def config(folder: str, steps: int) -> Config:
    """Two layers of width 64, batches of 64 x 32 tokens, everything logged as by default."""
    return config_from_dict(
        {
            "run": {"name": "overhead", "folder": folder},
            "data": {"name": "copy", "length": [15, 15], "batch_size": 64, "validation_size": 10, "test_size": 10},
            "model": {"architecture": "decoder_only", "d_model": 64, "n_heads": 4, "n_layers": 2},
            "trainer": {"max_steps": steps, "val_every_n_steps": steps, "save_every_n_steps": 10 * LONG},
            "log": {"attention": {"every_n_validations": 0}},
        }
    )


def bare(folder: str) -> tuple[float, float]:
    """Seconds of a step of the bare loop, and of drawing a batch."""
    settings, task, model = prepare(config(folder, LONG))
    batches = list(TrainingBatches(task, settings.model.architecture, 1, 0, lambda: 0, LONG))
    began = time.perf_counter()
    for _ in TrainingBatches(task, settings.model.architecture, 1, 0, lambda: 0, LONG):
        pass  # each is let go of, as in training: the next one finds its memory
    drawing = (time.perf_counter() - began) / LONG
    optimizer = build_optimizer(model, settings.optimizer)
    schedule = build_schedule(optimizer, settings.optimizer.schedule, LONG)
    half = MIXED_DTYPES.get(resolve_precision("auto", "auto"))
    for step, batch in enumerate(batches):
        if step == SHORT:
            began = time.perf_counter()
        with torch.autocast("cpu", half, enabled=half is not None):
            loss = cross_entropy(model(*batch.inputs()), batch.labels) / count(batch.labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
    return (time.perf_counter() - began) / (LONG - SHORT), drawing


def trainer(folder: str) -> float:
    """Seconds of a step of the Trainer."""
    short, long = (train(config(folder, steps))["seconds"] for steps in (SHORT, LONG))
    return (long - short) / (LONG - SHORT)


def apart(who: str) -> dict[str, float]:
    """What one contestant measures in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.overhead", who], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def contestant(who: str) -> dict[str, float]:
    """Seconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        if who == "trainer":
            return {who: trainer(folder)}
        if who == "bare":
            return dict(zip((who, "drawing"), bare(folder), strict=True))
        with kept_memory():
            return {who: bare(folder)[0]}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(contestant(sys.argv[1])))
        return
    rows: list[dict[str, Any]] = [
        {name: value for who in ("bare", "bare, memory kept", "trainer") for name, value in apart(who).items()}
        for _ in range(ROUNDS)
    ]
    steps = {name: statistics.median(row[name] for row in rows) for name in rows[0]}

    def over(name: str) -> str:
        return f"{statistics.median(row['trainer'] / row[name] - 1 for row in rows):+.1%}"

    lines = [
        ["bare loop, batches drawn before", f"{1e3 * steps['bare']:.2f} ms", over("bare")],
        ["the same, memory kept", f"{1e3 * steps['bare, memory kept']:.2f} ms", over("bare, memory kept")],
        ["`minitx train`", f"{1e3 * steps['trainer']:.2f} ms", ""],
        ["of it, drawing a batch", f"{1e3 * steps['drawing']:.3f} ms", f"{steps['drawing'] / steps['trainer']:.1%}"],
    ]
    record(
        "overhead",
        rows,
        table(["2 layers, d 64, 64 x 32 tokens", "a step", "`minitx train` over it"], lines),
        "performance.md",
    )


if __name__ == "__main__":
    main()
