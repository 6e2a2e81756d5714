"""Ctrl-C, SIGTERM, a closed terminal or pipe: the step is completed and saved; a second signal ends the run at once."""

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.environments import LightningEnvironment

from minitx.training.folder import RunFiles, print_line

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
SIGPIPE: Any = getattr(signal, "SIGPIPE", None)  # Windows has neither this one nor SIGHUP


class StopOnSignal(Callback):
    """End a run at a signal, or when nobody reads its output any more, with exit code 128 + the signal's number.

    After Ctrl-C, the exception is KeyboardInterrupt, with which a notebook or another session continues.
    The current training step or validation is completed, last.ckpt is saved, and all processes exit together, whichever
    of them received the signal. A single process exits at once if there is nothing to complete: before the first
    step, after the last, or in a validation of a step that is already saved.
    """

    def __init__(self, files: RunFiles, check: Callable[..., None] = lambda *given: None) -> None:
        self.files, self._check = files, check  # called with trainer and module before a save
        self._caught: list[signal.Signals] = []
        self.received = 0  # number of the signal
        self._trainer: Any = None
        self._training = self._trained = False

    @contextmanager
    def around(self, trainer: pl.Trainer) -> Iterator[None]:
        self._trainer = trainer
        # Lightning's own handler for SIGTERM would start a collective operation in the middle of any other, and hang.
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        if threading.current_thread() is not threading.main_thread():
            yield  # Python handles signals in the main thread only
            return
        caught = [each for each in SIGNALS if each in SIGNALS[:2] or signal.getsignal(each) != signal.SIG_IGN]  # nohup
        self._caught = caught
        before = {number: signal.signal(number, self._handle) for number in caught}
        if launched_by_lightning(trainer):
            deliver(True)  # also those sent while this process was starting
        elif trainer.world_size > 1:
            deliver(False)  # launched processes inherit the mask: signals wait until their handlers are installed
        try:
            yield
        except SystemExit as end:
            if end.code == 128 + signal.SIGINT:
                raise KeyboardInterrupt from None  # Lightning would make it a SystemExit with code 1
            raise
        finally:
            deliver(True)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        second, self.received = self.received, number
        for each in self._caught:
            if each != signal.SIGINT or not _in_session():
                signal.signal(each, signal.SIG_DFL)  # a second signal ends even a hang outside of Python
        saved = self._trainer.validating and self.files.saved == self._trainer.global_step
        if second or self._trained or (self._trainer.world_size == 1 and (not self._training or saved)):
            raise self._exit(number)
        if self._trainer.is_global_zero:  # not print, which this handler may interrupt
            message = f"{signal.Signals(number).name}: finishing the current step; a second signal ends at once\n"
            with suppress(OSError):  # of a closed terminal
                os.write(2, message.encode())

    def setup(self, trainer: pl.Trainer, module: Any, stage: str) -> None:
        """Unblock signals, now that all processes have started."""
        deliver(True)

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Exit before the first step after a signal during the start."""
        self._training = True
        if number := self._received_anywhere(trainer):
            raise self._exit(number)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save and exit between whole steps: a checkpoint does not hold a partly accumulated gradient.

        After the last step the run completes, because a resumed run would lack its validation.
        """
        if (batch_idx + 1) % trainer.accumulate_grad_batches or trainer.global_step == trainer.max_steps:
            return
        if number := self._received_anywhere(trainer):
            self._check(trainer, module, True)
            for save in trainer.checkpoint_callbacks:  # last.ckpt, and what is due, even if a validation is too
                save.on_train_end(trainer, module)
            raise self._exit(number)

    def on_fit_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Exit after a signal in the last step; from now on a signal ends the process at once."""
        self._trained = True
        if self.received:
            raise self._exit(self.received)

    def _received_anywhere(self, trainer: pl.Trainer) -> int:
        """The signal that any process has received, in all processes; 0 for none."""
        if not self.received and _output_is_closed():
            self.received = SIGPIPE
        if trainer.world_size == 1:
            return self.received
        local = torch.tensor(self.received, device=trainer.strategy.root_device)
        return int(trainer.strategy.reduce(local, reduce_op="max"))

    def _exit(self, number: int) -> SystemExit:
        """Print how to resume; returns the exception that ends this process."""
        if self._trainer.is_global_zero:
            last, resume = self.files.saved, "resume=True" if _in_session() else "--resume"
            if self._trained:
                message = f"stopped after training; {resume} evaluates, and so does minitx evaluate {self.files.folder}"
            elif last is None and self.files.last.exists():
                message = f"stopped before the first step; resume with {resume}"
            elif last is None:
                message = "stopped before anything was saved; start again"
            else:
                message = f"stopped at step {last:,}; resume with {resume}"
            closed = number == SIGPIPE
            print_line(f"standard output was closed: {message}" if closed else message, to_errors=closed)
        return SystemExit(0 if launched_by_lightning(self._trainer) else 128 + number)


def _in_session() -> bool:
    """Whether this process is a notebook's kernel or an interpreter at its prompt, whose variables a user keeps."""
    return hasattr(sys, "ps1")


def _output_is_closed() -> bool:
    """Whether standard output is a pipe that nobody reads any more, as after `| head`."""
    with suppress(OSError, ValueError, AttributeError):  # it is not a file, or there is no poll
        if stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode):
            poll = select.poll()
            poll.register(sys.stdout.fileno(), select.POLLOUT)  # an empty mask finds nothing on macOS
            return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    return False


def deliver(now: bool) -> None:
    """Deliver signals to this process, pending ones included, or let them wait; Windows has no such mask."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK if now else signal.SIG_BLOCK, SIGNALS)


def launched_by_lightning(trainer: pl.Trainer) -> bool:
    """Whether the run's first process has started this one, which then must exit with code 0.

    Lightning's launcher kills the first process when another one exits with any other code.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    return isinstance(environment, LightningEnvironment) and not trainer.is_global_zero
