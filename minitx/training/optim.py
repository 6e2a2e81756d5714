"""Optimizers and learning-rate schedules, both over optimizer steps."""

import math
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor, nn

from minitx.config.training_sections import OptimizerConfig, ScheduleConfig
from minitx.nn import Head, NoPositions


def build_optimizer(model: nn.Module, config: OptimizerConfig, fused: bool = True) -> torch.optim.Optimizer:
    """AdamW, or Muon for the matrices of the layers and AdamW for the rest.

    Weight decay applies to matrices, not to vectors (biases, norms) nor to biases of attention scores.
    """
    matrices, decayed, undecayed = parameter_groups(model, config.name == "muon", biases_of_scores(model))
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=fused)
    if not matrices:
        return adamw
    muon = import_module("minitx.training.optimizers.muon")  # not in the core: imported if it is selected
    return muon.CombinedOptimizer(matrices, adamw, config)


def parameter_groups(model: nn.Module, muon: bool, score_biases: set[Tensor]) -> tuple[list[Tensor], ...]:
    """Trained parameters for Muon, for AdamW with decay and for AdamW without, each in the order of the model."""
    linear = [part for part in model.modules() if isinstance(part, nn.Linear) and not isinstance(part, Head)]
    matrices = {part.weight for part in linear} if muon else set()
    groups: tuple[list[Tensor], ...] = ([], [], [])
    for parameter in model.parameters():
        decays = parameter.dim() >= 2 and parameter not in score_biases
        if parameter.requires_grad:
            groups[0 if parameter in matrices else 1 if decays else 2].append(parameter)
    return groups


def biases_of_scores(model: nn.Module) -> set[Tensor]:
    """Parameters of position schemes that are added to attention scores."""
    schemes = [part for part in model.modules() if isinstance(part, NoPositions)]
    return {scheme.get_parameter(name) for scheme in schemes for name in scheme.score_biases}


def place_step_counters(optimizer: torch.optim.Optimizer) -> None:
    """Move AdamW's step counters to the parameter's device if fused, else the CPU: a checkpoint has them on either."""
    for part in getattr(optimizer, "parts", (optimizer,)):  # Muon and AdamW
        fused = part.param_groups[0].get("fused")  # of all its groups
        for parameter, state in part.state.items():
            if "step" in state:
                state["step"] = state["step"].to(parameter.device if fused else "cpu")


def skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer skips its step if its attribute `found_inf` [], which torch's GradScaler sets, is 1."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def schedule(config: ScheduleConfig, max_steps: int) -> Callable[[int], float]:
    """Ratio of the learning rate to its peak, as a function of the optimizer steps done.

    Every schedule starts with a linear warm-up. Then `constant` keeps the peak, `linear` and `cosine` decay to
    final_ratio at max_steps, `wsd` does so from the peak over the last decay_share of the steps (Hu et al. 2024,
    MiniCPM), and `noam` decays with 1 / sqrt(step) (Vaswani et al. 2017, 5.3, whose peak of
    d_model^-0.5 * warmup_steps^-0.5 is optimizer.lr here).
    """
    warmup = config.warmup_steps

    def ratio(step: int) -> float:
        step += 1  # the rate of the first step is above 0
        if step <= warmup:
            return step / warmup
        if config.name == "noam":
            return math.sqrt(max(warmup, 1) / step)
        start = max(warmup, round(max_steps * (1.0 - config.decay_share))) if config.name == "wsd" else warmup
        done = min(max(step - start, 0) / max(max_steps - start, 1), 1.0)
        if config.name in ("linear", "wsd"):
            return 1.0 - (1.0 - config.final_ratio) * done
        if config.name == "cosine":
            return config.final_ratio + (1.0 - config.final_ratio) * 0.5 * (1.0 + math.cos(math.pi * done))
        return 1.0

    return ratio
