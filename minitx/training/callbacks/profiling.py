"""Where the time of a training step goes: phases by the clock, operators by torch's profiler."""

from __future__ import annotations

import os
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch.profiler import ProfilerActivity, profile

from minitx.hardware.devices import finished_at

FIRST = 10
"""Steps before those that are watched: the first ones are slower than any later one."""
OPERATORS = 12
"""How many are told."""


class ProfileSteps(Callback):
    """Watches some early steps, twice as many as are asked for: the clock's, then the profiler's, which slows them.

    Args:
        steps: how many for each.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.phases: dict[str, float] = {}
        self._since = 0.0
        self._batches = 0
        self._profile: profile | None = None

    def _lap(self, phase: str, device: torch.device) -> None:
        """Count the time since the last call as spent in a phase."""
        now = finished_at(device)
        if self._timing:
            self.phases[phase] = self.phases.get(phase, 0.0) + now - self._since
        self._since = now

    @property
    def _timing(self) -> bool:
        return FIRST < self._batches <= FIRST + self.steps

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        """The batch is there."""
        self._batches += 1
        self._lap("drawing the batch, and whatever stands between steps", module.device)
        if self._batches == FIRST + self.steps + 1:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its own lines about starting and stopping
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (module.device.type == "cuda")
            self._profile = profile(activities=activities)
            self._profile.start()

    def on_before_backward(self, trainer: pl.Trainer, module: pl.LightningModule, loss: Any) -> None:
        """The loss is there."""
        self._lap("forward", module.device)

    def on_after_backward(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """The gradients are there."""
        self._lap("backward", module.device)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The weights are changed."""
        self._lap("clipping, optimiser, schedule", module.device)
        if self._profile is not None and self._batches == FIRST + 2 * self.steps:
            self._profile.stop()
            if trainer.is_global_zero:
                print(self._told(self._profile), flush=True)
            self._profile = None

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Let go of a profiler that has not seen all its steps, and say so."""
        if self._profile is not None:
            self._profile.stop()
            self._profile = None
        if self._batches < FIRST + 2 * self.steps and trainer.is_global_zero:
            print(f"trainer.profile {self.steps} needs {FIRST + 2 * self.steps} batches, there were {self._batches}")

    def _told(self, operators: profile) -> str:
        """Both tables as text."""
        total = sum(self.phases.values())
        lines = [f"a batch takes {1e3 * total / self.steps:.2f} ms (mean of {self.steps})"]
        lines += [f"  {seconds / total:6.1%}  {phase}" for phase, seconds in self.phases.items()]
        spent = [
            (getattr(event, "self_device_time_total", 0) or event.self_cpu_time_total, event)
            for event in operators.key_averages()
        ]
        whole = sum(microseconds for microseconds, _ in spent)
        lines += ["operators, by their own time"]
        for microseconds, event in sorted(spent, key=lambda pair: -pair[0])[:OPERATORS]:
            calls = event.count / self.steps
            lines.append(f"  {microseconds / whole:6.1%}  {event.key}, {calls:.0f} calls a batch")
        return "\n".join(lines)
