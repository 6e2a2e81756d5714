"""Choices beyond the original Transformer, in every architecture."""

from typing import Any

import pytest
import torch
from torch import nn

from minitx.config.schema import ModelConfig
from minitx.models.builder import build_model
from small_models import every_architecture, run


def logits(model: nn.Module) -> torch.Tensor:
    return run(model, *torch.randint(0, 9, (2, 2, 6)))


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
    {"sandwich_norm": True},
    {"parallel_residual": True},
    {"parallel_residual": True, "shared_norm": True},
    {"logit_softcap": 0.5},
    {"qk_norm": True, "norm_eps": 0.5},
    {"window": (None, 3)},
    {"window": (5, 3), "window_position": {"name": "t5"}},
]


@every_architecture
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
    found = logits(model)
    usual.load_state_dict(model.state_dict(), strict=False)
    torch.manual_seed(1)
    assert not torch.allclose(found, logits(usual), atol=1e-4)
    found.square().mean().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in model.parameters())
