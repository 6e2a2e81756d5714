"""One line that tells how training goes: rewritten in place on a terminal, a line a validation in a file."""

from __future__ import annotations

import sys
import time
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from minitx.data.batch import IGNORE, Batch
from minitx.training.folder import say
from minitx.training.module import TransformerModule


class ProgressLine(Callback):
    """Prints step, loss, the last validation, tokens/s and the time left, and logs the training curves.

    Args:
        every_n_steps: steps between updates.
    """

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = max(every_n_steps, 1)
        self._in_place = sys.stdout.isatty()
        self._since = self._begun = 0.0
        self._step = self._first = 0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Start the clock."""
        self._since = self._begun = time.perf_counter()
        self._step = self._first = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Every n-th step: one synchronisation, one line, one point on each curve."""
        assert isinstance(module, TransformerModule)
        assert module.loss is not None
        step = trainer.global_step
        if step == self._step or step % self.every_n_steps or not trainer.is_global_zero:
            return
        now = time.perf_counter()
        batches = (step - self._step) * trainer.accumulate_grad_batches * trainer.world_size
        rate = int((batch.labels != IGNORE).sum()) * batches / (now - self._since)
        self._since, self._step = now, step
        curves = {
            "training/loss": float(module.loss),
            "training/learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "training/tokens_per_second": rate,
        }
        if module.gradient_norm is not None:
            curves["training/gradient_norm"] = float(module.gradient_norm)
        if module.steps.skip:
            curves["training/skipped_steps"] = int(module.steps.skipped)
        if trainer.logger is not None:
            trainer.logger.log_metrics(curves, step)
        if self._in_place:
            left = (now - self._begun) / (step - self._first) * (trainer.max_steps - step)
            self._print(self._line(trainer, module, rate, left), end="\r")

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """A line that stays; and validation does not count as training time."""
        assert isinstance(module, TransformerModule)
        if not trainer.is_global_zero or trainer.state.fn != "fit":
            return
        now = time.perf_counter()
        self._print(self._line(trainer, module, None, None) + f"  {now - self._begun:.1f} s", end="\n")
        self._since = now

    def _line(self, trainer: pl.Trainer, module: TransformerModule, rate: float | None, left: float | None) -> str:
        parts = [f"step {trainer.global_step:,}/{trainer.max_steps:,}"]
        if module.loss is not None:
            parts.append(f"loss {float(module.loss):.4f}")
        parts.append(described(module.validated))
        if rate is not None:
            parts.append(f"{rate:,.0f} tokens/s")
        if left is not None:
            parts.append(f"{int(left) // 60}:{int(left) % 60:02d} left")
        return "  ".join(part for part in parts if part)

    def _print(self, line: str, end: str) -> None:
        say(f"\033[2K{line}" if self._in_place else line, end)


def described(figures: dict[str, float]) -> str:
    """The figures of a validation as people read them."""
    if "bleu" in figures:
        return f"validation BLEU {figures['bleu']:.2f}, loss {figures['loss']:.4f}"
    if "exact_match" in figures:
        return f"exact match {100 * figures['exact_match']:.2f} %"
    if "loss" in figures:
        return f"validation loss {figures['loss']:.4f}"
    return ""
