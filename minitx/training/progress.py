"""The progress line: rewritten in place on a terminal; in a file, a line every ten seconds and for each validation."""

import shutil
import sys
import time
from typing import Any

from lightning.pytorch.callbacks import Callback

from minitx.data.batch import Batch
from minitx.training.folder import print_line

TERMINAL_SECONDS, FILE_SECONDS = 1.0, 10.0  # maximum age of the line, if steps are shorter


class ProgressLine(Callback):
    """Print step, loss, latest validation, tokens/s and remaining time, and log the training curves."""

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps, self._in_place = every_n_steps, sys.stdout.isatty()
        self._seconds = TERMINAL_SECONDS if self._in_place else FILE_SECONDS
        self._printed_at = self._logged_at = self._started_at = 0.0
        self._first_step, self._rate_text = 0, ""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._started_at = time.perf_counter()
        self._printed_at = self._started_at - self._seconds + TERMINAL_SECONDS  # the first line comes early
        self._first_step = trainer.global_step

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Batch, batch_idx: int) -> None:
        if not self._logged_at:  # tokens/s exclude the time of validations and of what runs after them
            self._logged_at, module.predicted = time.perf_counter(), 0

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Synchronize with the device every n steps only: one point on each curve."""
        step, now = trainer.global_step, time.perf_counter()
        if not trainer.is_global_zero or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if due := step % self.every_n_steps == 0:
            self._log(trainer, module, now)
        if now - self._printed_at >= self._seconds or (due and self._in_place):
            left = int((now - self._started_at) / (step - self._first_step) * (trainer.max_steps - step))
            synchronized = due or module.device.type == "cpu"
            self._print(trainer, module, f"{self._rate_text}{left // 60}:{left % 60:02d} left", "\r", synchronized)

    def _log(self, trainer: Any, module: Any, now: float) -> None:
        rate = float(module.predicted) / (now - self._logged_at)
        self._logged_at, module.predicted, self._rate_text = now, 0, f"{rate:,.0f} tokens/s  "
        curves = {
            "training/loss": float(module.loss),
            "training/learning_rate": module.learning_rate,
            "training/tokens_per_second": rate,
            "training/gradient_norm": float(module.gradient_norm),
        }
        if module.config.trainer.skip_nonfinite_steps:  # FiniteSteps (training/resilience) counts them
            curves["training/skipped_steps"] = int(module.steps.skipped)
        for logger in trainer.loggers:
            logger.log_metrics(curves, trainer.global_step)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Print a line that is kept."""
        if trainer.is_global_zero:
            self._logged_at, seconds = 0.0, time.perf_counter() - self._started_at
            self._print(trainer, module, f"{seconds:.1f} s", "\n", module.loss is not None)

    def _print(self, trainer: Any, module: Any, rest: str, end: str, with_loss: bool) -> None:
        self._printed_at = time.perf_counter()
        loss = f"loss {float(module.loss):.4f}" if with_loss else ""
        step = f"step {trainer.global_step:,}/{trainer.max_steps:,}"
        line = "  ".join(filter(None, (step, loss, validation_text(module.validated), rest)))
        width = None if end == "\n" else shutil.get_terminal_size().columns  # a line of two rows cannot be rewritten
        print_line(f"\033[2K{line[:width]}", end) if self._in_place else print_line(line)


def validation_text(figures: dict[str, float]) -> str:
    """Figures of a validation for the progress line."""
    if "bleu" in figures:
        return f"validation BLEU {figures['bleu']:.2f}, loss {figures['loss']:.4f}"
    if "exact_match" in figures:
        return f"exact match {100 * figures['exact_match']:.2f} %"
    return f"validation loss {figures['loss']:.4f}" if figures else ""
