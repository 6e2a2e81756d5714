"""Norms, activations and depths beyond the original: against independent implementations, in every architecture."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minitx.config import ModelConfig
from minitx.models import ARCHITECTURES, build_model
from minitx.nn import ACTIVATIONS, NORMS, FeedForward, build_norm


def run(model: nn.Module, length: int = 6) -> torch.Tensor:
    ids = torch.randint(0, 9, (2, length))
    return model(ids, ids) if hasattr(model, "encode") else model(ids)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_combination_trains(architecture: Any, norm: Any, activation: Any) -> None:
    torch.manual_seed(0)
    config = ModelConfig(architecture, d_model=16, n_heads=2, norm=norm, activation=activation, vocab_size=9)
    model = build_model(config)
    run(model).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    kinds = {type(part) for part in model.modules() if isinstance(part, tuple(NORMS.values()))}
    assert kinds == {NORMS[norm]}


def test_swiglu_equals_llama() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    configuration = pytest.importorskip("transformers.models.llama.configuration_llama")
    torch.manual_seed(0)
    theirs = llama.LlamaMLP(configuration.LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=2))
    ours = FeedForward(16, 24, "swiglu", bias=False)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(ours(x), theirs(x))


def test_geglu_and_relu2_are_their_formulas() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    gated = FeedForward(8, 12, "geglu")
    torch.testing.assert_close(gated(x), gated.down_proj(F.gelu(gated.gate_proj(x)) * gated.up_proj(x)))
    squared = FeedForward(8, 12, "relu2")
    torch.testing.assert_close(squared(x), squared.down_proj(F.relu(squared.up_proj(x)) ** 2))
    assert squared.gate_proj is None


def test_rmsnorm_is_its_formula_and_stays_in_half_precision() -> None:
    torch.manual_seed(0)
    norm = build_norm("rmsnorm", 16)
    nn.init.normal_(norm.weight)
    x = torch.randn(4, 16)
    expected = x / (x.square().mean(dim=-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected)
    assert norm(x.bfloat16()).dtype == torch.bfloat16


def test_unknown_norm_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"model\.norm must be one of layernorm, rmsnorm, got 'batchnorm'"):
        build_model(ModelConfig(norm="batchnorm", vocab_size=9))  # type: ignore[arg-type]


def test_encoder_and_decoder_may_differ_in_depth() -> None:
    model = build_model(ModelConfig(n_layers=3, n_decoder_layers=1, vocab_size=9))
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (3, 1)
    assert run(model).shape == (2, 6, 9)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architecture": "decoder_only", "n_decoder_layers": 2}, "is for encoder_decoder"),
        ({"n_decoder_layers": 0}, "must be at least 1, got 0"),
    ],
)
def test_decoder_depth_refusals(changes: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"model\.n_decoder_layers {reason}"):
        build_model(ModelConfig(vocab_size=9, **changes))
