"""Wrap the attention functions of a model, and record their weights.

Legend: B batch, T queries, S keys, H heads.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minitx.nn import MultiHeadAttention

KINDS = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}
"""By kind of attention, the text of its queries and that of its keys."""


class Map(NamedTuple):
    """The heads of one layer for one example, without padding."""

    weights: Tensor  # [H, T, S], float
    queries: Sequence[str]  # T labels
    keys: Sequence[str]  # S labels
    kind: str  # encoder, decoder or cross


def attention_modules(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Every MultiHeadAttention by its path; compilation, of the model or of its parts, does not change the paths."""
    return {
        path.replace("_orig_mod.", ""): module
        for path, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    }


@contextmanager
def wrapped_attention(model: nn.Module, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Within this block, each attention of a model, compiled or not, calls the wrapper instead; blocks may nest.

    The wrapper's arguments are a module's path, its attention function, and the arguments of that function.
    """
    with ExitStack() as stack:
        for path, module in attention_modules(model).items():
            stack.callback(setattr, module, "attention", module.attention)
            module.attention = partial(wrapper, path, module.attention)
        yield


@contextmanager
def observed_attention(model: nn.Module, observe: Callable[[str, Tensor], Any]) -> Iterator[None]:
    """Within this block, pass the path and the weights [B, H, T, S] of every attention to `observe`, call by call."""

    def explicit(path: str, inner: Callable[..., Any], *args: Any, return_weights: bool = False, **kwargs: Any) -> Any:
        out, weights = inner(*args, return_weights=True, **kwargs)
        observe(path, weights.detach())
        return (out, weights) if return_weights else out

    # A compiled graph does not allow weights that outlive the call. If nothing is compiled, the slow import is avoided.
    with wrapped_attention(model, torch.compiler.disable(explicit) if "torch._dynamo" in sys.modules else explicit):
        yield


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
    with observed_attention(model, maps.__setitem__):
        yield maps
