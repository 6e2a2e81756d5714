"""Attention on a GPU that skips blocks outside a window and may cap scores: torch's flex_attention.

Legend: B batch, T tokens, H heads, G key-value heads, K d_head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from minitx.nn import masks


def flex_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, softcap: float | None, compiled: bool = True
) -> Tensor:
    """Compute self-attention of unpadded sequences: q [B, H, T, K], k and v [B, G, T, K].

    Args:
        q: queries.
        k: keys.
        v: values.
        causal: hide the future.
        window: number of keys that a query may attend to, itself included; None for all.
        softcap: as in explicit_attention.
        compiled: generate a kernel; False applies the same rules step by step, on any device.
    """
    blocks = _block_mask(q.size(2), causal, window, q.device)
    score_mod = None if softcap is None else _score_mod(softcap)
    grouped = q.size(1) != k.size(1)
    out: Tensor = _function(compiled)(q, k, v, score_mod=score_mod, block_mask=blocks, enable_gqa=grouped)
    return out


@cache
def _function(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention as torch_flex

    return torch.compile(torch_flex) if compiled else torch_flex


@lru_cache(maxsize=16)
def _block_mask(tokens: int, causal: bool, window: int | None, device: torch.device) -> Any:
    """The blocks of the score matrix that must be computed; None for all."""
    from torch.nn.attention.flex_attention import create_block_mask

    if not (rules := masks.rules(causal, window)):
        return None
    (rule,) = rules
    with torch.inference_mode(False):  # a cached mask serves training too, which cannot save inference tensors
        return create_block_mask(lambda b, h, q, k: rule(q, k), None, None, tokens, tokens, device=str(device))


@cache
def _score_mod(softcap: float) -> Callable[..., Tensor]:
    """One function object for each cap: a new object would compile a new kernel."""
    return lambda score, b, h, query, key: softcap * torch.tanh(score / softcap)
