"""The optimiser and its learning rate over optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from minitx.config.schema import OptimizerConfig, ScheduleConfig
from minitx.nn import Head


def build_optimizer(model: nn.Module, config: OptimizerConfig, fused: bool = True) -> torch.optim.Optimizer:
    """The optimiser: matrices are decayed, vectors (biases, norms) are not.

    muon moves the matrices of the layers, each update made orthogonal and as large as AdamW's would be, so that the
    same learning rate serves both (Liu et al. 2025); tables, the head and vectors are AdamW's.

    Args:
        model: whose parameters to change.
        config: how.
        fused: whether AdamW may be torch's fused one.

    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    orthogonal: set[Tensor] = set(_layer_matrices(model)) if config.name == "muon" else set()
    others = [parameter for parameter in parameters if parameter not in orthogonal]
    groups = [
        {"params": [p for p in others if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=fused)
    if not orthogonal:
        return adamw
    matrices = [parameter for parameter in parameters if parameter in orthogonal]
    muon = torch.optim.Muon(matrices, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
    return CombinedOptimizer(muon, adamw)


def _layer_matrices(model: nn.Module) -> Iterator[Tensor]:
    """The weights of linear maps between hidden vectors: neither tables nor the head."""
    for part in model.modules():
        if isinstance(part, nn.Linear) and not isinstance(part, Head):
            yield part.weight


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimisers, each with parameters of its own, that step as one.

    Args:
        parts: the optimisers; their groups are shared, so that a schedule reaches them.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all parts after one evaluation of the closure, whose result is returned."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Those of the parts."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each part its own."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def build_schedule(optimizer: torch.optim.Optimizer, config: ScheduleConfig, max_steps: int) -> LambdaLR:
    """The learning rate as torch steps it."""
    return LambdaLR(optimizer, schedule(config, max_steps))


def schedule(config: ScheduleConfig, max_steps: int) -> Callable[[int], float]:
    """The learning rate as a share of its peak, by the number of optimiser steps done.

    All rise in a straight line over the warm-up. Then: `constant` stays; `linear` and `cosine` fall to final_ratio at
    max_steps; `noam` falls with 1 / sqrt(step) (Vaswani et al. 2017, 5.3; their formula has its peak at
    d_model^-0.5 * warmup_steps^-0.5, which here is optimizer.lr).

    """
    warmup = config.warmup_steps

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


def sampled(config: ScheduleConfig, max_steps: int, points: int) -> list[tuple[int, float]]:
    """The schedule at up to `points` steps, evenly from the first to the last: (steps done, share of the peak)."""
    ratio = schedule(config, max_steps)
    places = torch.linspace(0, max_steps - 1, min(points, max_steps)).long().tolist()
    return [(place, ratio(place)) for place in places]
