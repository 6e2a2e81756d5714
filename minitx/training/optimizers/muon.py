"""Muon (Jordan 2024) for the matrices of the layers, stepped together with AdamW for the rest."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minitx.config.schema import OptimizerConfig
from minitx.training.optim import skips_on_device


class CombinedOptimizer(torch.optim.Optimizer):
    """Muon for matrices and AdamW for the rest, stepped together.

    Muon's update is orthogonal and scaled to the size of AdamW's, so that one learning rate serves both (Liu et al.
    2025). Both skip a step if `found_inf` is 1 and AdamW is fused; see skips_on_device.
    """

    def __init__(self, matrices: list[Tensor], adamw: torch.optim.AdamW, config: OptimizerConfig) -> None:
        decay = config.weight_decay
        muon = torch.optim.Muon(matrices, lr=config.lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        self.parts = (muon, adamw)
        self._step_supports_amp_scaling = skips_on_device(adamw)
        super().__init__([group for part in self.parts for group in part.param_groups], {})  # shared with schedules

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        muon, adamw = self.parts
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None:
            muon.step()
        else:
            _step_unless(muon, found_inf > 0)
        adamw.found_inf = found_inf  # type: ignore[attr-defined]
        adamw.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


@torch.no_grad()
def _step_unless(muon: torch.optim.Muon, skip: Tensor) -> None:
    """Step unless skip [] is True, without a synchronization with its device."""
    before = []
    for weight in (weight for group in muon.param_groups for weight in group["params"] if weight.grad is not None):
        momentum = muon.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight.grad))
        weight.grad = torch.where(skip, momentum, weight.grad)  # the mean of a momentum and itself is the same
        before.append((weight, weight.clone()))
    muon.step()
    for weight, saved in before:
        weight.copy_(torch.where(skip, saved, weight))
