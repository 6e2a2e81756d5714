"""Schedules, parameter groups and Muon."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from minitx import ModelConfig, build_model
from minitx.config.training_sections import OptimizerConfig, ScheduleConfig
from minitx.training.optim import build_optimizer, place_step_counters, schedule

DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - 0.9 * done,
    "cosine": lambda done: 0.1 + 0.9 * math.cos(math.pi * done / 2) ** 2,
    "wsd": lambda done: 1.0 - 0.9 * done,
}
"""The ratio to the peak by the share of the decay that is done, down to 0.1."""
SIZES = {"vocab_size": 9, "d_model": 8, "n_heads": 2, "n_layers": 2}


@pytest.mark.parametrize(("name", "begin"), [("constant", 0), ("linear", 0), ("cosine", 0), ("wsd", 75), ("wsd", 0)])
@pytest.mark.parametrize("warmup", [0, 10, 99])
def test_warmup_is_a_straight_line_to_the_peak_where_the_decay_begins(name: Any, begin: int, warmup: int) -> None:
    share = 1 - begin / 100 if name == "wsd" else 0.5
    config = ScheduleConfig(name, warmup_steps=warmup, final_ratio=0.1, decay_share=share)
    ratio, begin = schedule(config, max_steps=100), max(begin, warmup)
    after = [max(step - begin, 0) / (100 - begin) for step in range(warmup + 1, 101)]
    expected = [step / warmup for step in range(1, warmup + 1)] + [*map(DECAYS[name], after)]
    assert [ratio(step) for step in range(100)] == pytest.approx(expected)
    assert ratio(1000) == pytest.approx(expected[-1])


def test_noam_has_the_shape_of_the_paper() -> None:
    d_model, warmup = 512, 40
    ratio = schedule(ScheduleConfig("noam", warmup_steps=warmup), max_steps=1000)
    paper = [d_model**-0.5 * min(step**-0.5, step * warmup**-1.5) for step in range(1, 1001)]
    assert [ratio(step) for step in range(1000)] == pytest.approx([rate / max(paper) for rate in paper])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["t5", "transformer_xl", "fire"])
def test_biases_of_attention_scores_are_not_decayed(name: str, optimizer: str) -> None:
    """Nor are vectors."""
    model = build_model(ModelConfig(architecture="decoder_only", position={"name": name}, **SIZES))
    built = build_optimizer(model, OptimizerConfig(name=optimizer, weight_decay=0.5))  # type: ignore[arg-type]
    decay = {parameter: group["weight_decay"] for group in built.param_groups for parameter in group["params"]}
    biases = r"position\.(table\.weight|content|distance|readout)"
    for path, parameter in model.named_parameters():
        assert decay[parameter] == (0.0 if parameter.dim() < 2 or re.search(biases, path) else 0.5), path


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_step_counters_lie_where_the_settings_want_them(optimizer: str) -> None:
    """As after 16-mixed training on a CPU, now fused on a GPU; here the meta device replaces it."""
    layer, config = nn.Linear(4, 4), OptimizerConfig(name=optimizer)  # type: ignore[arg-type]
    before = build_optimizer(layer, config, fused=False)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    before.step()
    after = build_optimizer(nn.Linear(4, 4, device="meta"), config, fused=False)
    after.load_state_dict(before.state_dict())
    adamw = getattr(after, "parts", [after])[-1]
    steps = lambda: [state["step"] for state in adamw.state.values()]  # noqa: E731
    assert {step.device.type for step in steps()} == {"cpu"}
    place_step_counters(after)
    assert {step.device.type for step in steps()} == {"cpu"}
    for group in adamw.param_groups:
        group["fused"] = True
    place_step_counters(after)
    assert {step.device.type for step in steps()} == {"meta"}


def muon(model: nn.Module, **options: float) -> Any:
    return build_optimizer(model, OptimizerConfig(name="muon", lr=0.1, **options))


@pytest.mark.parametrize("tied", [True, False])
def test_muon_moves_the_matrices_of_the_layers_and_adamw_all_else(tied: bool) -> None:
    model = build_model(ModelConfig(**SIZES, tie_embeddings=tied, position={"name": "learned"}))
    parts = muon(model).parts
    names = {parameter: name for name, parameter in model.named_parameters()}
    orthogonal, others = ({names[each] for group in part.param_groups for each in group["params"]} for part in parts)
    assert isinstance(parts[0], torch.optim.Muon)
    assert orthogonal | others == set(names.values())
    assert not orthogonal & others
    kinds = {name.rsplit(".", 2)[-2] for name in orthogonal}
    assert kinds == {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"}
    assert all(name.endswith(".weight") for name in orthogonal)


def test_muon_moves_a_matrix_by_an_orthogonal_one_of_adamws_size() -> None:
    layer = nn.Linear(16, 16)
    before = layer.weight.detach().clone()
    optimizer = muon(layer, weight_decay=0.0)
    layer.weight.grad, layer.bias.grad = torch.randn(16, 16), torch.randn(16)
    optimizer.step()
    moved = before - layer.weight.detach()
    assert moved.square().mean().sqrt().item() == pytest.approx(0.1 * 0.2, rel=0.2), "AdamW's is about 0.2 of the rate"
    stretched = torch.linalg.svdvals(moved)
    assert stretched.max() / stretched.min() < 3
