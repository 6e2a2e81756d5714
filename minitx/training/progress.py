"""The progress line: rewritten in place on a terminal, one line per validation in a file."""

from __future__ import annotations

import sys
import time
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from minitx.data.batch import IGNORE, Batch
from minitx.training.folder import print_line
from minitx.training.module import TransformerModule


class ProgressLine(Callback):
    """Print step, loss, latest validation, tokens/s and remaining time, and log the training curves.

    Args:
        every_n_steps: steps between updates.
    """

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps
        self._in_place = sys.stdout.isatty()
        self._updated_at = self._started_at = 0.0
        self._step = self._first_step = 0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Start the clock."""
        self._updated_at = self._started_at = time.perf_counter()
        self._step = self._first_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Synchronize with the device every n steps: one line, one point on each curve."""
        assert isinstance(module, TransformerModule)
        assert module.loss is not None
        step = trainer.global_step
        if step == self._step or step % self.every_n_steps or not trainer.is_global_zero:
            return
        now = time.perf_counter()
        batches = (step - self._step) * trainer.accumulate_grad_batches * trainer.world_size
        rate = int((batch.labels != IGNORE).sum()) * batches / (now - self._updated_at)
        self._updated_at, self._step = now, step
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
            left = int((now - self._started_at) / (step - self._first_step) * (trainer.max_steps - step))
            self._print(trainer, module, f"{rate:,.0f} tokens/s  {left // 60}:{left % 60:02d} left", end="\r")

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Print a line that is kept; the time of a validation does not count for tokens/s."""
        assert isinstance(module, TransformerModule)
        if trainer.is_global_zero and trainer.state.fn == "fit":
            self._updated_at = time.perf_counter()
            self._print(trainer, module, f"{self._updated_at - self._started_at:.1f} s", end="\n")

    def _print(self, trainer: pl.Trainer, module: TransformerModule, rest: str, end: str) -> None:
        parts = [f"step {trainer.global_step:,}/{trainer.max_steps:,}"]
        if module.loss is not None:
            parts.append(f"loss {float(module.loss):.4f}")
        line = "  ".join(part for part in (*parts, described(module.validated), rest) if part)
        print_line(f"\033[2K{line}" if self._in_place else line, end)


def described(figures: dict[str, float]) -> str:
    """Figures of a validation for the progress line."""
    if "bleu" in figures:
        return f"validation BLEU {figures['bleu']:.2f}, loss {figures['loss']:.4f}"
    if "exact_match" in figures:
        return f"exact match {100 * figures['exact_match']:.2f} %"
    return f"validation loss {figures['loss']:.4f}" if figures else ""
