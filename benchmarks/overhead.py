"""Time that Lightning's Trainer, logging and batch sampling add to a bare training loop.

    python -m benchmarks.overhead

The bare loop has the same model, optimizer, schedule and clipping. Both train in fp32 on the CPU; by default, `minitx
train` would measure which precision is faster. They take turns of a hundred steps, as in benchmarks.training: each in
its own process, started in both orders, because memory reuse by the C library is a setting of the process. `minitx
train` reuses memory between steps and samples a batch for each; the bare loop is measured with and without reuse, and
with batches that are sampled beforehand or in each step. Sampling a batch is measured in the same way.
"""

import contextlib
import io
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.common import record, table
from benchmarks.training import Racer, races, ratio, timed
from minitx.config.schema import Config, config_from_dict
from minitx.data.loader import TrainingBatches
from minitx.hardware.memory import freed_memory_kept
from minitx.training import run
from minitx.training.api import train_config
from minitx.training.losses import count, cross_entropy
from minitx.training.optim import build_optimizer, schedule
from minitx.training.resolve import resolve

TURN = 100
"""Steps of a turn, and between two lines of the log."""
MAX_STEPS = 100 * TURN
"""More steps than all turns need."""


def config(folder: str) -> Config:
    """Two layers of width 64, batches of 64 x 32 tokens, everything logged as by default."""
    return config_from_dict(
        {
            "run": {"name": "overhead", "folder": folder},
            "data": {"name": "copy", "length": [15, 15], "batch_size": 64, "validation_size": 10, "test_size": 10},
            "model": {"architecture": "decoder_only", "d_model": 64, "n_heads": 4, "n_layers": 2},
            "trainer": {
                "accelerator": "cpu",
                "precision": "32-true",
                "max_steps": MAX_STEPS,
                "val_every_n_steps": MAX_STEPS,
                "save_every_n_steps": MAX_STEPS,
            },
            "log": {"every_n_steps": TURN, "attention": {"every_n_validations": 0}},
        }
    )


@dataclass(frozen=True)
class Loop:
    """The bare loop."""

    keeps_memory: bool = False
    samples: bool = False  # a new batch for each step, as `minitx train` does

    def run(self, turns: Connection) -> None:
        """Answer each turn with the seconds of a step."""
        settings, task, model, *_ = resolve(config("runs"))
        sampled = iter(TrainingBatches(task, settings, 0, lambda: 0))
        batches = sampled if self.samples else itertools.cycle([*itertools.islice(sampled, 5 * TURN)])
        optimizer = build_optimizer(model, settings.optimizer)
        scheduler = LambdaLR(optimizer, schedule(settings.optimizer.schedule, MAX_STEPS))

        def step() -> None:
            batch = next(batches)
            loss = cross_entropy(model(**batch.model_inputs()), batch.labels) / count(batch.labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)

        with freed_memory_kept() if self.keeps_memory else contextlib.nullcontext():
            take(turns, step)


class Sampling:
    """Batches, sampled and freed as in training, so that the next one reuses the memory."""

    def run(self, turns: Connection) -> None:
        """Answer each turn with the seconds of a batch."""
        settings, task, _, *_ = resolve(config("runs"))
        batches = iter(TrainingBatches(task, settings, 0, lambda: 0))

        def sample() -> None:
            next(batches)

        take(turns, sample)


def take(turns: Connection, step: Callable[[], None]) -> None:
    """Warm up, send a message, and take turns."""
    timed(step, TURN)
    turns.send(0)
    while turns.recv():
        turns.send(timed(step, TURN))


class Trained:
    """`minitx train`."""

    def run(self, turns: Connection) -> None:
        """Answer each turn with the seconds of a step."""
        trainer = run._trainer

        def in_turns(**settings: Any) -> Any:
            return trainer(**settings | {"callbacks": [*settings["callbacks"], Turns(turns)]})

        run._trainer = in_turns
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            train_config(config(folder))


class Turns(Callback):
    """Pauses a run between its turns; the first turn is the warm-up."""

    def __init__(self, turns: Connection) -> None:
        self._turns = turns
        self._began: float | None = None

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """After the last step of a turn, send the time of a step and wait for the next turn, if any."""
        if trainer.global_step % TURN == 0:
            self._turns.send(0 if self._began is None else (time.perf_counter() - self._began) / TURN)
            if not self._turns.recv():
                raise SystemExit  # without validation or test
            self._began = time.perf_counter()


def main() -> None:
    others: dict[str, Racer] = {
        "bare": Loop(),
        "bare, memory reused": Loop(keeps_memory=True),
        "bare, sampling": Loop(keeps_memory=True, samples=True),
        "sampling": Sampling(),
    }
    found = {name: races({"minitx": Trained(), name: other})[0] for name, other in others.items()}

    def cells(name: str) -> list[str]:
        seconds = ([each for race in found[name] for each in race[who]] for who in (name, "minitx"))
        return [f"{1e3 * statistics.median(each):.2f} ms" for each in seconds]

    def over(name: str) -> str:
        return f"{1 / ratio(found[name], name) - 1:+.1%}"

    lines = [
        ["bare loop, batches sampled before", *cells("bare"), over("bare")],
        ["the same, with memory reuse", *cells("bare, memory reused"), over("bare, memory reused")],
        ["the same, sampling each batch", *cells("bare, sampling"), over("bare, sampling")],
        ["sampling a batch", *cells("sampling"), f"{ratio(found['sampling'], 'sampling'):.1%} of a step"],
    ]
    header = ["2 layers, d 64, 64 x 32 tokens, fp32", "per step", "`minitx train`, in turns with it", "difference"]
    record("overhead", [found], table(header, lines), "performance.md")


if __name__ == "__main__":
    main()
