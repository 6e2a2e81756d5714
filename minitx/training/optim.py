"""The optimiser and its learning rate over optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from minitx.config import OptimizerConfig, ScheduleConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig, fused: bool = True) -> torch.optim.AdamW:
    """AdamW with two groups: matrices are decayed, vectors (biases, norms) are not.

    Raises:
        ValueError: a number out of its range.
    """
    if config.lr <= 0:
        raise ValueError(f"optimizer.lr must be larger than 0, got {config.lr}")
    if not all(0.0 <= beta < 1.0 for beta in config.betas):
        raise ValueError(f"optimizer.betas must lie in [0, 1), got {[*config.betas]}")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=fused)


def build_schedule(optimizer: torch.optim.Optimizer, config: ScheduleConfig, max_steps: int) -> LambdaLR:
    """The learning rate as torch steps it."""
    return LambdaLR(optimizer, schedule(config, max_steps))


def schedule(config: ScheduleConfig, max_steps: int) -> Callable[[int], float]:
    """The learning rate as a share of its peak, by the number of optimiser steps done.

    All rise in a straight line over the warm-up. Then: `constant` stays; `linear` and `cosine` fall to final_ratio at
    max_steps; `noam` falls with 1 / sqrt(step) (Vaswani et al. 2017, 5.3; their formula has its peak at
    d_model^-0.5 * warmup_steps^-0.5, which here is optimizer.lr).

    Raises:
        ValueError: a number out of its range.
    """
    warmup = config.warmup_steps
    if warmup < 0:
        raise ValueError(f"optimizer.schedule.warmup_steps must not be negative, got {warmup}")
    if not 0.0 <= config.final_ratio <= 1.0:
        raise ValueError(f"optimizer.schedule.final_ratio must lie in [0, 1], got {config.final_ratio}")

    def ratio(step: int) -> float:
        step += 1  # the first step already learns
        if step <= warmup:
            return step / warmup
        if config.name == "noam":
            return math.sqrt(max(warmup, 1) / step)
        done = min((step - warmup) / max(max_steps - warmup, 1), 1.0)
        if config.name == "linear":
            return 1.0 - (1.0 - config.final_ratio) * done
        if config.name == "cosine":
            return config.final_ratio + (1.0 - config.final_ratio) * 0.5 * (1.0 + math.cos(math.pi * done))
        return 1.0

    return ratio
