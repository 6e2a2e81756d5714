"""Optimizer steps that are not finite are skipped; divergence.py decides whether the run ends."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from minitx.hardware.devices import moved
from minitx.training.module import EveryStep
from minitx.training.optim import skips_on_device


class FiniteSteps(EveryStep):
    """Skip and count steps whose loss or gradient is not finite: weights and optimizer states are unchanged.

    Args:
        skip: continue after such a step; otherwise every later step is skipped as well.
    """

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.skip = skip
        self.deferred = False  # whether reading the counters below would synchronize with a device
        self.in_a_row = torch.tensor(0)  # skipped steps up to now
        self.overflows = torch.tensor(0)  # steps in a row whose fp16 gradient was too large for its scale
        self.first = torch.tensor(0)  # number of the first step in the row, from 0
        self.norm = torch.tensor(0.0)  # of its gradient
        self._losses: Tensor | None = None

    def add_losses(self, nonfinite: Tensor) -> None:
        """Record one batch of the coming step by the number of non-finite losses over all processes: []."""
        self._losses = nonfinite if self._losses is None else self._losses + nonfinite

    def before_step(self, optimizer: Optimizer, norm: Tensor, step: int, scaler: GradScaler | None) -> None:
        """Decide whether the optimizer skips the coming step.

        Args:
            optimizer: about to step.
            norm: of the gradient over all weights and processes: [].
            step: its number, from 0.
            scaler: of fp16 gradients, already unscaled; it handles overflows itself.
        """
        assert self._losses is not None
        overflow = ~norm.isfinite()
        bad = self._losses > 0
        self._losses = None
        if scaler is not None:
            self.overflows = (moved(self.overflows, norm.device) + 1) * overflow
        else:
            bad = bad | overflow
        before = moved(self.in_a_row, norm.device)
        if not self.skip:
            bad = bad | (before > 0)
        starts = bad & (before == 0)
        self.in_a_row = (before + 1) * bad
        self.skipped = moved(self.skipped, norm.device) + bad
        self.first = torch.where(starts, step, moved(self.first, norm.device))
        recorded = starts if scaler is None else starts | overflow
        self.norm = torch.where(recorded, norm, moved(self.norm, norm.device))
        self.deferred = norm.is_cuda and skips_on_device(optimizer)
        if not self.deferred:
            if bad:
                optimizer.zero_grad(set_to_none=True)  # an optimizer ignores weights without a gradient
        elif scaler is None:
            optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # as torch's GradScaler sets it
        else:
            for found in scaler._found_inf_per_device(optimizer).values():  # the scaler passes them on, 0 or 1
                found.masked_fill_(bad, 1.0)
