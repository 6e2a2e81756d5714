"""Norms, activations and depths beyond the original: against independent implementations, in every architecture."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minitx.config.schema import ModelConfig
from minitx.models.builder import build_model
from minitx.models.transformers import ARCHITECTURES
from minitx.nn import ACTIVATIONS, NORMS, FeedForward


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


def test_unknown_norm_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"model\.norm: expected one of 'layernorm', 'rmsnorm', got 'batchnorm'"):
        build_model(ModelConfig(norm="batchnorm", vocab_size=9))  # type: ignore[arg-type]


def test_encoder_and_decoder_may_differ_in_depth() -> None:
    model = build_model(ModelConfig(n_layers=3, n_decoder_layers=1, vocab_size=9))
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (3, 1)
    assert run(model).shape == (2, 6, 9)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architecture": "decoder_only", "n_decoder_layers": 2}, "is for encoder_decoder"),
        ({"n_decoder_layers": 0}, ": expected an integer of at least 1 or null, got 0"),
    ],
)
def test_decoder_depth_refusals(changes: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"model\.n_decoder_layers ?{reason}"):
        build_model(ModelConfig(vocab_size=9, **changes))


# ---- choices of models that were trained elsewhere -------------------------------------------------------------------

CHOICES: list[dict[str, Any]] = [
    {"norm_eps": 0.5},
    {"norm_eps": 0.5, "norm": "rmsnorm", "embedding_norm": True, "norm_first": False},
    {"activation": "gelu_tanh"},
    {"activation": "geglu_tanh"},
    {"qkv_bias": False},
    {"bias": False, "qkv_bias": True},
    {"scale_embeddings": False},
    {"head_bias": True},
    {"head_transform": True, "tie_embeddings": False},
    {"position": {"name": "sinusoidal", "halves": True}},
    {"position": {"name": "rope", "scaling": "llama3", "factor": 8.0, "original_max_len": 16}},
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("changes", CHOICES, ids=str)
def test_every_choice_counts_and_trains(architecture: Any, changes: dict[str, Any]) -> None:
    """Each changes what is computed, with the weights that both have, and leaves no parameter without a gradient."""
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "vocab_size": 9}
    position = {"name": "rope"} if changes.get("position", {}).get("name") == "rope" else {"name": "sinusoidal"}
    alike = {name: changes[name] for name in ("norm", "embedding_norm", "norm_first") if name in changes}
    alike |= {"bias": False} if "bias" in changes else {"activation": "geglu"} if "geglu" in str(changes) else {}
    torch.manual_seed(0)
    model = build_model(ModelConfig(architecture, **sizes | {"position": position} | changes))
    usual = build_model(ModelConfig(architecture, **sizes | {"position": position} | alike))
    with torch.no_grad():
        for part in [*usual.parameters(), *model.parameters()]:
            part.add_(0.3 * torch.randn_like(part))
    torch.manual_seed(1)
    found = run(model)
    usual.load_state_dict(model.state_dict(), strict=False)
    torch.manual_seed(1)
    assert not torch.allclose(found, run(usual), atol=1e-4)
    found.square().mean().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in model.parameters())


def test_a_config_without_the_newer_keys_means_what_it_meant() -> None:
    config = ModelConfig(vocab_size=9)
    assert (config.norm_eps, config.qkv_bias, config.scale_embeddings) == (None, None, True)
    assert (config.head_bias, config.head_transform) == (False, False)
    model = build_model(config)
    assert not any("head.bias" in name or "transform" in name for name, _ in model.named_parameters())
    assert {part.eps for part in model.modules() if isinstance(part, nn.LayerNorm)} == {1e-5}
    assert model.embedding.scale == 8.0


@pytest.mark.parametrize("eps", [0.0, -1.0])
def test_an_eps_that_is_none_is_refused(eps: float) -> None:
    with pytest.raises(ValueError, match=r"model\.norm_eps: expected a number above 0"):
        build_model(ModelConfig(norm_eps=eps, vocab_size=9))


def test_llama_3_stretches_slow_waves_only() -> None:
    options = {"name": "rope", "scaling": "llama3", "factor": 8.0, "original_max_len": 64}
    plain, stretched = (
        build_model(ModelConfig("decoder_only", d_model=64, n_heads=2, vocab_size=9, position=position))
        .decoder.position.frequencies
        for position in ({"name": "rope"}, options)
    )  # fmt: skip
    turns = 64 * plain / (2 * torch.pi)
    torch.testing.assert_close(stretched[turns > 4], plain[turns > 4])
    torch.testing.assert_close(stretched[turns < 1], plain[turns < 1] / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((stretched < plain) & (stretched > plain / 8))[between].all()
    bad = ModelConfig("decoder_only", vocab_size=9, position=options | {"low_freq_factor": 5.0})
    with pytest.raises(ValueError, match=r"model\.position\.low_freq_factor must be positive and below"):
        build_model(bad)
