"""Hooks around the attention functions of a model: record weights, scale or ablate heads.

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
"""From a module's path and its attention function to the replacement."""


class Map(NamedTuple):
    """The heads of one layer for one example, without padding."""

    weights: Tensor  # [H, T, S], float
    queries: Sequence[str]  # T labels
    keys: Sequence[str]  # S labels
    kind: str  # encoder, decoder or cross


@contextmanager
def wrapped_attention(model: nn.Module, wrapper: Wrapper) -> Iterator[None]:
    """Within this block, wrap the attention function of every MultiHeadAttention, compiled or not; blocks may nest."""
    modules = attention_modules(model)
    originals = {path: module.attention for path, module in modules.items()}
    try:
        for path, module in modules.items():
            module.attention = wrapper(path, module.attention)
        yield
    finally:
        for path, module in modules.items():
            module.attention = originals[path]


def attention_modules(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Every MultiHeadAttention by its path; compilation, of the model or of its parts, does not change the paths."""
    return {
        path.replace("_orig_mod.", ""): module
        for path, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    }


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Within this block, record the weights of every attention, which are then computed explicitly.

        with record_attention(model) as maps:
            model(ids)
        maps["decoder.layers.0.self_attn"]  # [B, H, T, S]

    Yields:
        A dict that each forward fills: module path to probabilities before dropout. A later call of a module
        overwrites the weights of an earlier one.
    """
    maps: dict[str, Tensor] = {}

    def recorder(path: str, inner: AttentionFunction) -> AttentionFunction:
        @torch.compiler.disable  # the recorded weights outlive the call, which a compiled graph does not allow
        def record(*args: Any, return_weights: bool = False, **kwargs: Any) -> Any:
            out, weights = inner(*args, return_weights=True, **kwargs)
            maps[path] = weights.detach()
            return (out, weights) if return_weights else out

        return record

    with wrapped_attention(model, recorder):
        yield maps


@contextmanager
def head_mask(model: nn.Module, masks: Mapping[str, Sequence[float] | Tensor]) -> Iterator[None]:
    """Within this block, multiply the output of each head by its factor: 0 ablates a head (Michel et al. 2019).

        with head_mask(model, {"decoder.layers.0.self_attn": [1, 0, 1, 1]}):
            model(ids)

    Args:
        model: any module with MultiHeadAttention inside.
        masks: module path to one factor for each head, [H] or [B, H]; other modules are left alone. Gradients flow
            into a tensor: one backward gives the importance of each head.

    Raises:
        ConfigError: a path that is no attention of this model, or another number of heads.
    """
    modules = attention_modules(model)
    factors: dict[str, Tensor] = {}
    for path, mask in masks.items():
        if path not in modules:
            raise ConfigError(f"head_mask: {path} is no attention of this model, which has: {', '.join(modules)}")
        factors[path] = torch.atleast_1d(torch.as_tensor(mask))
        expected, actual = modules[path].n_heads, factors[path].size(-1)
        if actual != expected:
            raise ConfigError(f"head_mask: {path} has {expected} heads, got {actual} numbers")

    def scaler(path: str, inner: AttentionFunction) -> AttentionFunction:
        if path not in factors:
            return inner

        def scale(*args: Any, return_weights: bool = False, **kwargs: Any) -> Any:
            result = inner(*args, return_weights=return_weights, **kwargs)
            out, *weights = result if return_weights else (result,)  # [B, H, T, K]
            out = out * factors[path][..., None, None].to(out)
            return (out, *weights) if return_weights else out

        return scale

    with wrapped_attention(model, scaler):
        yield
