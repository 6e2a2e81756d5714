"""Profile of a training step: phases by the clock, operators by torch's profiler."""

import os
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch.profiler import ProfilerActivity, profile

from minitx.hardware.machine import finished_at
from minitx.training.folder import print_line

WARMUP_STEPS = 10
"""Steps before the profiled ones. The first steps are slower than later ones."""
MAX_OPERATORS = 12
"""Operators in the table."""


class ProfileSteps(Callback):
    """Profile `steps` early batches by the clock, and as many more by the profiler, which slows them."""

    def __init__(self, steps: int) -> None:
        self.steps, self.last = steps, WARMUP_STEPS + 2 * steps
        self.phases: dict[str, float] = {}  # seconds
        self._lap_start = 0.0
        self._batches = 0
        self._profile: profile | None = None

    def _end_phase(self, phase: str, device: torch.device) -> None:
        """Add the time since the last call to a phase."""
        now = finished_at(device)
        if WARMUP_STEPS < self._batches <= WARMUP_STEPS + self.steps:
            self.phases[phase] = self.phases.get(phase, 0.0) + now - self._lap_start
        self._lap_start = now

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Start the profiler after the timed steps."""
        self._batches += 1
        self._end_phase("sampling the batch, and all else between steps", module.device)
        if self._batches == WARMUP_STEPS + self.steps + 1:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # hides its messages about starting and stopping
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (module.device.type == "cuda")
            self._profile = profile(activities=activities)
            self._profile.start()

    def on_before_backward(self, trainer: pl.Trainer, module: Any, loss: Any) -> None:
        self._end_phase("forward", module.device)

    def on_after_backward(self, trainer: pl.Trainer, module: Any) -> None:
        self._end_phase("backward", module.device)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *batch: Any) -> None:
        """Print the tables after the last profiled step."""
        self._end_phase("clipping, optimizer, schedule", module.device)
        if self._profile is not None and self._batches == self.last:
            self._profile.stop()
            if trainer.is_global_zero:
                print_line(self._tables(self._profile, module.device.type))
            self._profile = None

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Stop the profiler, and report a run that was too short."""
        self._stop()
        if self._batches < self.last and trainer.is_global_zero:
            print_line(f"trainer.profile {self.steps} needs {self.last} batches, there were {self._batches}")

    def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
        """Stop the profiler, which would otherwise run until the process ends, such as that of a notebook."""
        self._stop()

    def _stop(self) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _tables(self, operators: profile, device: str) -> str:
        total = sum(self.phases.values())
        lines = [f"a batch takes {1e3 * total / self.steps:.2f} ms (mean of {self.steps})"]
        lines += [f"  {seconds / total:6.1%}  {phase}" for phase, seconds in self.phases.items()]
        table = operators.key_averages().table(
            sort_by=f"self_{'cuda' if device == 'cuda' else 'cpu'}_time_total",
            row_limit=MAX_OPERATORS,
            max_name_column_width=40,
        )
        return "\n".join([*lines, table])
