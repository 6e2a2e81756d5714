"""Wrap the attention of a model during its usual forward: record weights, mask heads.

Legend: B batch, T queries, S keys, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minitx.config.errors import ConfigError
from minitx.nn import MultiHeadAttention
from minitx.nn.multi_head import AttentionFunction

Wrapper = Callable[[str, AttentionFunction], AttentionFunction]
"""Maps a module's path and its attention function to the function that replaces it."""


class Map(NamedTuple):
    """The heads of one layer for one example, without padding."""

    weights: Tensor  # [H, T, S], float
    queries: Sequence[str]  # T labels
    keys: Sequence[str]  # S labels
    kind: str  # encoder, decoder or cross


@contextmanager
def wrapped_attention(model: nn.Module, wrapper: Wrapper) -> Iterator[None]:
    """Within this block, wrap the attention function of every MultiHeadAttention.

    Args:
        model: any module with MultiHeadAttention inside, compiled or not.
        wrapper: makes the replacement; blocks may be nested, each wraps the one before.
    """
    attentions = attention_modules(model)
    before = {name: part.attention for name, part in attentions.items()}
    try:
        for name, part in attentions.items():
            part.attention = wrapper(name, part.attention)
        yield
    finally:
        for name, part in attentions.items():
            part.attention = before[name]


def attention_modules(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Every MultiHeadAttention by its path; what was compiled, whole or in parts, has the paths it had before."""
    return {
        name.replace("_orig_mod.", ""): part
        for name, part in model.named_modules()
        if isinstance(part, MultiHeadAttention)
    }


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Within this block, every attention of the model computes its weights explicitly; they are collected here.

        with record_attention(model) as maps:
            model(ids)
        maps["decoder.layers.0.self_attn"]  # [B, H, T, S]

    Args:
        model: any module with MultiHeadAttention inside.

    Yields:
        A dict that each forward fills: module path to probabilities before dropout. A later call of the same
        module replaces the earlier one's.
    """
    maps: dict[str, Tensor] = {}

    def recorder(name: str, inner: AttentionFunction) -> AttentionFunction:
        @torch.compiler.disable  # what is kept outlives the call, which a compiled graph does not
        def record(*args: Any, return_weights: bool = False, **kwargs: Any) -> Any:
            out, weights = inner(*args, return_weights=True, **kwargs)
            maps[name] = weights.detach()
            return (out, weights) if return_weights else out

        return record

    with wrapped_attention(model, recorder):
        yield maps


@contextmanager
def head_mask(model: nn.Module, masks: Mapping[str, Sequence[float] | Tensor]) -> Iterator[None]:
    """Within this block, scale the output of heads: 0 removes a head (Michel et al. 2019), 1 leaves it.

        with head_mask(model, {"decoder.layers.0.self_attn": [1, 0, 1, 1]}):
            model(ids)

    Args:
        model: any module with MultiHeadAttention inside.
        masks: module path to one number for each head, [H] or [B, H]; other modules are left alone. Gradients flow
            into a tensor, so that one backward tells how much each head matters.

    Raises:
        ConfigError: a path that is no attention of this model, or another number of heads.
    """
    attentions = attention_modules(model)
    factors: dict[str, Tensor] = {}
    for name, mask in masks.items():
        if name not in attentions:
            raise ConfigError(f"head_mask: {name} is no attention of this model, which has: {', '.join(attentions)}")
        factors[name] = torch.atleast_1d(torch.as_tensor(mask))
        if factors[name].size(-1) != attentions[name].n_heads:
            raise ConfigError(
                f"head_mask: {name} has {attentions[name].n_heads} heads, got {factors[name].size(-1)} numbers"
            )

    def scaler(name: str, inner: AttentionFunction) -> AttentionFunction:
        if name not in factors:
            return inner

        def scale(*args: Any, return_weights: bool = False, **kwargs: Any) -> Any:
            result = inner(*args, return_weights=return_weights, **kwargs)
            out, *weights = result if return_weights else (result,)  # [B, H, T, K]
            out = out * factors[name][..., None, None].to(out)
            return (out, *weights) if return_weights else out

        return scale

    with wrapped_attention(model, scaler):
        yield
