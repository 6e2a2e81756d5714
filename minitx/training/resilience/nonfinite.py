"""Optimiser steps that are not finite are not taken; see divergence.py for what comes of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from minitx.training.module import EveryStep


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

    def before(self, optimizer: Optimizer, norm: Tensor, step: int, scaled: bool) -> None:
        """Decide on a step, between its backward and the optimiser.

        Args:
            optimizer: that is about to step.
            norm: of the gradient over all weights and processes: [].
            step: its number, counted from 0.
            scaled: whether gradients are scaled (fp16): one that is too large is then the scaler's business.
        """
        assert self._losses is not None
        overflow = ~norm.isfinite()
        bad = self._losses > 0
        self._losses = None
        if scaled:
            self.overflows = (self.overflows.to(norm.device) + 1) * overflow
        else:
            bad = bad | overflow
        before = self.in_a_row.to(norm.device)
        if not self.skip:
            bad = bad | (before > 0)
        begins = bad & (before == 0)
        self.in_a_row = (before + 1) * bad
        self.skipped = self.skipped.to(norm.device) + bad
        self.first = torch.where(begins, step, self.first.to(norm.device))
        self.norm = torch.where(begins | (overflow & scaled), norm, self.norm.to(norm.device))
        self.deferred = norm.is_cuda and isinstance(optimizer, AdamW) and bool(optimizer.defaults["fused"])
        if self.deferred:
            optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # as torch's GradScaler tells it
        elif bad:
            optimizer.zero_grad(set_to_none=True)  # what has no gradient is left alone, with its states
