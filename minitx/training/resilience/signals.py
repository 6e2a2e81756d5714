"""Ctrl-C and SIGTERM: what is begun is finished and saved, then the run ends; a second one ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment

from minitx.training.folder import RunFiles
from minitx.training.hooks import RunCallback

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal(RunCallback):
    """Leaves a run at a signal, with exit code 128 + its number.

    A training step or a validation that is going on comes to its end, last.ckpt is saved, and all processes leave
    together, whichever of them the signal has reached. Where there is nothing to finish (before the first step,
    after the last, or in a validation of what is saved already), a process that trains alone leaves at once.

    Args:
        disk: where last.ckpt is saved, and what is known of it.
    """

    def __init__(self, disk: RunFiles) -> None:
        self.disk = disk
        self.received: int | None = None
        self._trainer: pl.Trainer | None = None
        self._training = self._trained = False

    @contextmanager
    def around(self, trainer: pl.Trainer) -> Iterator[None]:
        """Within this block signals are heard."""
        self._trainer = trainer
        # Lightning's own handler for SIGTERM, composed with ours, would start a collective operation wherever it
        # meets this process, while the others are in another one: a hang.
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        if threading.current_thread() is not threading.main_thread():
            yield  # Python hears signals in the main thread only
            return
        before = {number: signal.signal(number, self._listen) for number in SIGNALS}
        if launched_by_lightning(trainer):
            let_through()  # what came while this process was starting
        elif trainer.world_size > 1:
            # Processes that are launched now inherit what is blocked: a signal waits until they can hear it.
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            let_through()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _listen(self, number: int, frame: object) -> None:
        self.received = number
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)  # a second one ends even what hangs outside of Python
        assert self._trainer is not None
        saved = self._trainer.validating and self.disk.saved == self._trainer.global_step
        if self._trained or (self._trainer.world_size == 1 and (not self._training or saved)):
            raise self._farewell(number)
        if self._trainer.is_global_zero:  # not by print, in whose middle this may be
            os.write(2, f"{signal.Signals(number).name}: finishing what is begun; once more ends at once\n".encode())

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Leave before the first step, if asked to while processes were getting ready."""
        self._training = True
        if trainer.ckpt_path is not None and Path(trainer.ckpt_path) == self.disk.last:
            self.disk.saved = trainer.global_step
        if number := self._heard(trainer):
            raise self._farewell(number)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Between whole steps only: a half-accumulated gradient is not in a checkpoint.

        Behind the last one a run comes to its end by itself, its validation included, which a resumed one would lack.
        """
        if (batch_idx + 1) % trainer.accumulate_grad_batches or trainer.global_step == trainer.max_steps:
            return
        if number := self._heard(trainer):
            trainer.save_checkpoint(self.disk.last)
            raise self._farewell(number)

    def on_launch(self) -> None:
        """Receive signals again, also those that came while they were blocked."""
        let_through()

    def on_trained(self) -> None:
        """Training has ended and is saved: leave if asked to meanwhile, and from now on at once."""
        self._trained = True
        if self.received is not None:
            raise self._farewell(self.received)

    def _heard(self, trainer: pl.Trainer) -> int:
        """The signal that any process has received, known to all; 0 for none."""
        number = self.received or 0
        if trainer.world_size == 1:
            return number
        mine = torch.tensor(number, device=trainer.strategy.root_device)
        return int(trainer.strategy.reduce(mine, reduce_op="max"))

    def _farewell(self, number: int) -> SystemExit:
        """Say how to go on; what ends this process."""
        trainer = self._trainer
        assert trainer is not None
        if trainer.is_global_zero:
            last = self.disk.saved
            if self._trained:
                told = f"stopped after training; --resume evaluates, and so does minitx evaluate {self.disk.folder}"
            elif last is None and self.disk.last.exists():
                told = "stopped before the first step; go on with --resume"
            elif last is None:
                told = "stopped before anything was saved; start again"
            else:
                told = f"stopped at step {last:,}; go on with --resume"
            print(told, flush=True)
        return SystemExit(0 if launched_by_lightning(trainer) else 128 + number)


def let_through() -> None:
    """Let this process receive signals, also those that came while they were blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def launched_by_lightning(trainer: pl.Trainer) -> bool:
    """Whether this is a process that the run's first one has started: it leaves with code 0, whatever has happened.

    Lightning's launcher kills the first process when one of the others ends with another code.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    return isinstance(environment, LightningEnvironment) and not trainer.is_global_zero
