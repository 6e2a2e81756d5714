"""The progress line: rewritten in place on a terminal, one line per validation in a file."""

import sys
import time
from typing import Any

from lightning.pytorch.callbacks import Callback

from minitx.data.batch import IGNORE, Batch
from minitx.training.folder import print_line


class ProgressLine(Callback):
    """Print step, loss, latest validation, tokens/s and remaining time, and log the training curves."""

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps
        self._in_place = sys.stdout.isatty()
        self._updated_at = self._started_at = 0.0
        self._step = self._first_step = 0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._updated_at = self._started_at = time.perf_counter()
        self._step = self._first_step = trainer.global_step

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Synchronize with the device every n steps: one line, one point on each curve."""
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
        trainer.logger.log_metrics(curves, step)
        if self._in_place:
            left = int((now - self._started_at) / (step - self._first_step) * (trainer.max_steps - step))
            self._print(trainer, module, f"{rate:,.0f} tokens/s  {left // 60}:{left % 60:02d} left", end="\r")

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Print a line that is kept; the time of a validation does not count for tokens/s."""
        if trainer.is_global_zero:
            self._updated_at = time.perf_counter()
            self._print(trainer, module, f"{self._updated_at - self._started_at:.1f} s", end="\n")

    def _print(self, trainer: Any, module: Any, rest: str, end: str) -> None:
        step, loss = f"step {trainer.global_step:,}/{trainer.max_steps:,}", ""
        if module.loss is not None:
            loss = f"loss {float(module.loss):.4f}"
        line = "  ".join(filter(None, (step, loss, described(module.validated), rest)))
        print_line(f"\033[2K{line}" if self._in_place else line, end)


def described(figures: dict[str, float]) -> str:
    """Figures of a validation for the progress line."""
    match figures:
        case {"bleu": bleu, "loss": loss}:
            return f"validation BLEU {bleu:.2f}, loss {loss:.4f}"
        case {"exact_match": exact_match}:
            return f"exact match {100 * exact_match:.2f} %"
        case {"loss": loss}:
            return f"validation loss {loss:.4f}"
        case _:
            return ""
