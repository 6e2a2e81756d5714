"""The training state of a checkpoint, checked against the model and the optimizer that it is for.

Fused kernels do not check the shapes of an optimizer's state: they write past the end of a smaller tensor. What follows
from the number of the step (loops, schedule) or from the config (settings of the optimizer) is not read at all.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError
from minitx.config.schema import Config
from minitx.hardware.devices import MIXED_DTYPES, TRUE_DTYPES
from minitx.nn.kernels import CPU_HALF_KERNELS
from minitx.training.callbacks.average_weights import TRAINED
from minitx.training.optim import build_optimizer, parameter_groups
from minitx.training.resolve import ResolvedRun
from minitx.training.start import alternative

MOMENTS = {"AdamW": ("exp_avg", "exp_avg_sq"), "Muon": ("momentum_buffer",)}
"""Tensors of the shape of their parameter, by optimizer."""
COPIED = ("global_step", "precision", "attention_kernel", "data_digest", "sampling")
SCALER = "MixedPrecision"
"""Key of the gradient scaler of fp16."""


def checked(run: ResolvedRun) -> ResolvedRun:
    """Replace the contents of the checkpoint that a run resumes by those that fit the run.

    Raises:
        ConfigError: names, shapes, types or ranges of the training state do not fit.
    """
    start = run.start
    if start is None or not start.resumes:
        return run
    try:
        contents = _checked(start.contents, run.model, run.config)
    except ConfigError as error:
        damaged = f"the training state of {start.file} is damaged: {error}"
        raise ConfigError(f"--resume: {damaged}; {alternative(start.file)}") from None
    return run._replace(start=replace(start, contents=contents))


def _checked(saved: Mapping[str, Any], model: nn.Module, config: Config) -> dict[str, Any]:
    """Rebuild a checkpoint's contents from values that have been checked."""
    step, skipped = saved["global_step"], saved.get("skipped_steps", 0)
    seconds, validated = saved.get("seconds", 0.0), saved.get("validated", True)
    _require(isinstance(skipped, int) and 0 <= skipped <= step, f"skipped_steps must be 0 to {step:,}", skipped)
    _require(_is_number(seconds) and 0 <= seconds < float("inf"), "seconds must be a number of at least 0", seconds)
    _require(isinstance(validated, bool), "validated must be true or false", validated)
    kernel = saved.get("attention_kernel", CPU_HALF_KERNELS[0])
    _require(kernel in CPU_HALF_KERNELS, f"attention_kernel must be one of {', '.join(CPU_HALF_KERNELS)}", kernel)
    precisions = ("32-true", *MIXED_DTYPES, *TRUE_DTYPES)
    precision = saved.get("precision", "32-true")
    _require(precision in precisions, f"precision must be one of {', '.join(precisions)}", precision)
    scaler = saved.get(SCALER)
    if scaler is not None:
        fits = isinstance(scaler, dict) and all(_is_number(value) and 0 <= value < 1e30 for value in scaler.values())
        _require(fits, f"{SCALER} must have numbers of at least 0", scaler)
    # The optimizer has no state if all steps were skipped, by minitx or by the scaler.
    states = _checked_optimizer(saved["optimizer_states"], model, config, step, step == skipped or scaler is not None)
    header = saved["minitx"]
    whole = checkpoint.contents_of(header["config"], header["tokenizer"], checkpoint.weights(saved))
    weights = whole["state_dict"]
    trained = saved.get(TRAINED)
    if trained is not None:
        fits = isinstance(trained, dict) and _shapes(trained) == _shapes(weights)
        _require(fits, f"{TRAINED} must have the shapes of the weights", trained)
        finite = all(bool(tensor.isfinite().all()) for tensor in trained.values())
        _require(finite, f"{TRAINED} must be finite", "NaN or infinity")
    contents = (
        whole
        | {key: saved[key] for key in COPIED if key in saved}
        | {
            "pytorch-lightning_version": pl.__version__,
            "epoch": 0,
            "seconds": seconds,
            "validated": validated,
            "skipped_steps": skipped,
            # Without an average from here on, training continues from the weights that were trained.
            "state_dict": weights if trained is None or config.trainer.ema else trained,
            "callbacks": _checked_callbacks(saved.get("callbacks", {}), step),
            "optimizer_states": [states],
            "lr_schedulers": [],
        }
    )
    if trained is not None and config.trainer.ema:
        contents[TRAINED] = trained
    return contents if scaler is None else contents | {SCALER: scaler}


def _shapes(tensors: dict[str, Any]) -> dict[str, Any]:
    """Shapes by name; None for all but tensors of floats."""
    return {
        name: tensor.shape if isinstance(tensor, Tensor) and tensor.is_floating_point() else None
        for name, tensor in tensors.items()
    }


def _checked_optimizer(saved: Any, model: nn.Module, config: Config, step: int, may_be_empty: bool) -> dict[str, Any]:
    """An optimizer's state_dict in the current parameter groups, with the settings of the config."""
    _require(isinstance(saved, list) and len(saved) == 1, "optimizer_states must be a list of one", saved)
    optimizer = build_optimizer(model, config.optimizer)
    combined, parts = hasattr(optimizer, "parts"), getattr(optimizer, "parts", (optimizer,))  # Muon and AdamW
    found: Any = saved[0].get("parts") if combined and isinstance(saved[0], dict) else saved
    _require(isinstance(found, list) and len(found) == len(parts), f"expected {len(parts)} optimizers", found)
    names = {parameter: name for name, parameter in model.named_parameters()}
    older = parameter_groups(model, combined, set())[1:]  # with the biases of attention scores in the group with decay
    both = zip(found, parts, strict=True)
    checked = [_checked_part(state, part, older, names, step, may_be_empty) for state, part in both]
    return {"parts": checked} if combined else checked[0]


def _checked_part(
    saved: Any,
    optimizer: torch.optim.Optimizer,
    older: tuple[list[Tensor], ...],
    names: dict[Any, str],
    step: int,
    may_be_empty: bool,
) -> dict[str, Any]:
    """The state_dict of AdamW or Muon; `older` are AdamW's groups in earlier versions."""
    kind = type(optimizer).__name__
    numbers: list[Any] = []
    _require(isinstance(saved, dict) and isinstance(saved.get("state"), dict), f"{kind} must have a state", saved)
    _require(isinstance(saved.get("param_groups"), list), "param_groups must be a list", saved.get("param_groups"))
    for group in saved["param_groups"]:
        numbers.append(group.get("params") if isinstance(group, dict) else None)
        fits = isinstance(numbers[-1], list) and all(isinstance(number, int) for number in numbers[-1])
        _require(fits, "params must be a list of integers", numbers[-1])
    now = [group["params"] for group in optimizer.param_groups]
    groups = next((groups for groups in (now, older) if [*map(len, groups)] == [*map(len, numbers)]), None)
    _require(groups, f"{kind} must have parameters in groups of {[*map(len, now)]}", numbers)
    of_parameter = dict(zip(chain(*(groups or ())), chain(*numbers), strict=True))
    _require(len({*of_parameter.values()}) == len(of_parameter), "params must be different numbers", numbers)
    states = saved["state"]
    if not states:
        _require(may_be_empty, f"{kind} must have a state after {step:,} steps", states)
        return optimizer.state_dict()
    fits = states.keys() <= {*of_parameter.values()}  # a weight without a gradient has no state
    _require(fits, f"{kind} must have states of the model's parameters", [*states])
    checked = {
        number: _checked_state(states[of_parameter[weight]], kind, names[weight], weight.shape, step)
        for number, weight in enumerate(chain(*now))  # as torch numbers them
        if of_parameter[weight] in states
    }
    return optimizer.state_dict() | {"state": checked}


def _checked_state(state: Any, kind: str, name: str, shape: torch.Size, step: int) -> dict[str, Tensor]:
    """The state of one parameter; contiguous, because fused kernels ignore strides."""
    expected = {*MOMENTS[kind], *(["step"] if kind == "AdamW" else [])}
    _require(isinstance(state, dict) and state.keys() == expected, f"{name} must have {sorted(expected)}", state)
    for key, tensor in state.items():
        needed = [] if key == "step" else [*shape]
        fits = isinstance(tensor, Tensor) and tensor.is_floating_point() and [*tensor.shape] == needed
        _require(fits, f"{key} of {name} must be a tensor of floats {needed}", tensor)
        _require(bool(tensor.isfinite().all()), f"{key} of {name} must be finite", "NaN or infinity")
        if key in ("step", "exp_avg_sq"):
            low, high = float(tensor.min()), float(tensor.max())
            _require(low >= 0, f"{key} of {name} must be at least 0", low)
            _require(key != "step" or high <= step, f"{key} of {name} must be at most {step:,}", high)
    return {key: tensor.contiguous() for key, tensor in state.items()}


def _checked_callbacks(saved: Any, step: int) -> dict[str, Any]:
    """States of callbacks; those of earlier versions that no callback has now are not read."""
    _require(isinstance(saved, dict), "callbacks must be a dict", saved)
    for name, state in saved.items():
        _require(isinstance(name, str) and isinstance(state, dict), "callbacks must have states by name", state)
        if name.startswith("BestCheckpoint"):
            score = state.get("best_model_score")
            fits = score is None or (isinstance(score, Tensor) and score.dim() == 0 and score.is_floating_point())
            _require(fits, "best_model_score must be a number", score)
        elif name.startswith("StopWhen"):
            fits = state.keys() == {"best", "row", "first"} and all(map(_is_number, state.values()))
            _require(fits, "StopWhen must have the numbers best, row and first", state)
        elif name == "StopOnDivergence":
            norm, *numbers = map(state.get, ("norm", "in_a_row", "overflows", "first"))
            fits = _is_number(norm) and all(type(number) is int and 0 <= number <= step for number in numbers)
            _require(fits, f"{name} must have a norm and numbers of at most {step:,} steps", state)
        elif name == "AutoCompile":
            fits = state.keys() == {"batches", "compiled"} and all(isinstance(value, int) for value in state.values())
            _require(fits, f"{name} must have batches and compiled", state)
    return saved


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(fits: Any, expected: str, got: Any) -> None:
    if not fits:
        shown = f"a tensor {[*got.shape]} of {got.dtype}" if isinstance(got, Tensor) else f"{reprlib.repr(got):.60}"
        raise ConfigError(f"{expected}, got {shown}")
