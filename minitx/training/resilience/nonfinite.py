"""Optimiser steps that are not finite are not taken; see divergence.py for what comes of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from minitx.hardware.devices import moved
from minitx.training.module import EveryStep
from minitx.training.optim import skips_on_device


class FiniteSteps(EveryStep):
    """Keeps steps whose loss or gradient is not finite from the weights and the optimiser's states, and counts them.

    Args:
        skip: whether to go on behind such a step; otherwise none is taken any more.
    """

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.skip = skip
        self.deferred = False  # whether the figures below stand on a device that is not to be waited for
        self.in_a_row = torch.tensor(0)  # up to now
        self.overflows = torch.tensor(0)  # steps in a row whose fp16 gradient was too large for its scale
        self.first = torch.tensor(0)  # the step at which this row began, counted from 0
        self.norm = torch.tensor(0.0)  # of the gradient then
        self._losses: Tensor | None = None

    def saw(self, losses: Tensor) -> None:
        """Another batch of the coming step.

        Args:
            losses: how many of all processes' losses are not finite: [].
        """
        self._losses = losses if self._losses is None else self._losses + losses

    def before(self, optimizer: Optimizer, norm: Tensor, step: int, scaler: GradScaler | None) -> None:
        """Decide on a step, between its backward and the optimiser.

        Args:
            optimizer: that is about to step.
            norm: of the gradient over all weights and processes: [].
            step: its number, counted from 0.
            scaler: of scaled gradients (fp16), unscaled by now: one that is too large is then the scaler's business.
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
        begins = bad & (before == 0)
        self.in_a_row = (before + 1) * bad
        self.skipped = moved(self.skipped, norm.device) + bad
        self.first = torch.where(begins, step, moved(self.first, norm.device))
        shows = begins if scaler is None else begins | overflow
        self.norm = torch.where(shows, norm, moved(self.norm, norm.device))
        self.deferred = norm.is_cuda and skips_on_device(optimizer)
        if not self.deferred:
            if bad:
                optimizer.zero_grad(set_to_none=True)  # what has no gradient is left alone, with its states
        elif scaler is None:
            optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # as torch's GradScaler tells it
        else:
            for found in scaler._found_inf_per_device(optimizer).values():  # which the scaler hands on, 0 or 1
                found.masked_fill_(bad, 1.0)
