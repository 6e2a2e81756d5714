"""The optimiser and its learning rate over optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from minitx.config.schema import OptimizerConfig, ScheduleConfig
from minitx.nn import Head, NoPositions


def build_optimizer(model: nn.Module, config: OptimizerConfig, fused: bool = True) -> torch.optim.Optimizer:
    """The optimiser: matrices are decayed; vectors (biases, norms) and biases of attention scores are not.

    muon moves the matrices of the layers, each update made orthogonal and as large as AdamW's would be, so that the
    same learning rate serves both (Liu et al. 2025); tables, the head and vectors are AdamW's.

    Args:
        model: whose parameters to change.
        config: how.
        fused: whether AdamW may be torch's fused one.

    """
    orthogonal: set[Tensor] = set(_layer_matrices(model)) if config.name == "muon" else set()
    decayed, others = _adamw_groups(model, orthogonal, _score_biases(model))
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=fused)
    if not orthogonal:
        return adamw
    matrices = [parameter for parameter in model.parameters() if parameter in orthogonal and parameter.requires_grad]
    muon = torch.optim.Muon(matrices, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
    return CombinedOptimizer(muon, adamw)


def _adamw_groups(model: nn.Module, without: set[Tensor], undecayed: set[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The trained parameters that decay and those that do not, each in the order of the model."""
    parameters = [p for p in model.parameters() if p.requires_grad and p not in without]
    decays = [p.dim() >= 2 and p not in undecayed for p in parameters]
    return [*compress(parameters, decays)], [*compress(parameters, (not each for each in decays))]


def _score_biases(model: nn.Module) -> set[Tensor]:
    """Parameters of position schemes that are biases of attention scores."""
    schemes = [part for part in model.modules() if isinstance(part, NoPositions)]
    return {scheme.get_parameter(name) for scheme in schemes for name in scheme.score_biases}


def regrouped(saved: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """The saved state of an optimizer, with AdamW's groups as they are now: biases of attention scores once decayed.

    Args:
        saved: an optimizer's state_dict, from a checkpoint.
        model: whose parameters it moves.
    """
    if "parts" in saved:
        muon, adamw = saved["parts"]
        return {"parts": [muon, _regrouped(adamw, model, set(_layer_matrices(model)))]}
    return _regrouped(saved, model, set())


def _regrouped(saved: dict[str, Any], model: nn.Module, without: set[Tensor]) -> dict[str, Any]:
    before, now = (_adamw_groups(model, without, undecayed) for undecayed in (set(), _score_biases(model)))
    numbers = [group["params"] for group in saved["param_groups"]]
    if [*map(len, numbers)] != [*map(len, before)]:
        return saved
    number = dict(zip(chain(*before), chain(*numbers), strict=True))
    groups = zip(saved["param_groups"], now, strict=True)
    return {**saved, "param_groups": [{**group, "params": [number[p] for p in members]} for group, members in groups]}


def place_step_counters(optimizer: torch.optim.Optimizer) -> None:
    """Move AdamW's step counters where its groups' settings want them: beside the parameter if fused, else on the CPU.

    A checkpoint brings them where the settings of its own run wanted them.
    """
    for part in optimizer.parts if isinstance(optimizer, CombinedOptimizer) else (optimizer,):
        for group in part.param_groups:
            for parameter in group["params"]:
                state = part.state.get(parameter, {})
                if isinstance(state.get("step"), Tensor):
                    state["step"] = state["step"].to(parameter.device if group.get("fused") else "cpu")


def _layer_matrices(model: nn.Module) -> Iterator[Tensor]:
    """The weights of linear maps between hidden vectors: neither tables nor the head."""
    for part in model.modules():
        if isinstance(part, nn.Linear) and not isinstance(part, Head):
            yield part.weight


def skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is skipped if the attribute `found_inf` [] is 1, as torch's GradScaler sets it."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


class CombinedOptimizer(torch.optim.Optimizer):
    """Muon and AdamW, each with parameters of its own, that step as one.

    Both skip a step if `found_inf` is 1 and AdamW is fused; see skips_on_device.

    Args:
        muon: moves matrices.
        adamw: moves the rest. The groups of both are shared, so that a schedule reaches them.
    """

    def __init__(self, muon: torch.optim.Muon, adamw: torch.optim.AdamW) -> None:
        self.parts = (muon, adamw)
        self._step_supports_amp_scaling = skips_on_device(adamw)
        super().__init__([group for part in self.parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step both after one evaluation of the closure, whose result is returned."""
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
        """Those of the parts."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each part its own."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


@torch.no_grad()
def _step_unless(muon: torch.optim.Muon, skip: Tensor) -> None:
    """Step, or change neither weights nor momentum where skip [], on the device, is True: nobody waits for it."""
    before = []
    for weight in (weight for group in muon.param_groups for weight in group["params"] if weight.grad is not None):
        momentum = muon.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight.grad))
        weight.grad = torch.where(skip, momentum, weight.grad)  # the mean of a momentum and itself is the same
        before.append((weight, weight.clone()))
    muon.step()
    for weight, saved in before:
        weight.copy_(torch.where(skip, saved, weight))


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
