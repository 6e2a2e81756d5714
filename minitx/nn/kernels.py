"""Attention on a GPU that skips what a window hides and may bend scores, on torch's flex_attention.

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
    """Self-attention of unpadded sequences; q [B, H, T, K], k and v [B, G, T, K], the rest as for the explicit one.

    Args:
        compiled: generate a kernel; without, the same rules are applied step by step, on any device.
    """
    bend = _bend(softcap) if softcap is not None else None
    blocks = _blocks(q.size(2), causal, window, q.device)
    grouped = q.size(1) != k.size(1)
    out: Tensor = _kernel(compiled)(q, k, v, score_mod=bend, block_mask=blocks, enable_gqa=grouped)
    return out


@cache
def _kernel(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention as torch_flex

    return torch.compile(torch_flex) if compiled else torch_flex


@lru_cache(maxsize=16)
def _blocks(tokens: int, causal: bool, window: int | None, device: torch.device) -> Any:
    """Which blocks of the score matrix must be computed at all; None for all."""
    from torch.nn.attention.flex_attention import create_block_mask

    if window is not None:
        rule = masks.window(window, causal=causal)
    elif causal:
        rule = masks.causal
    else:
        return None
    with torch.inference_mode(False):  # kept for training too, which may save no tensor made in inference mode
        return create_block_mask(lambda b, h, q, k: rule(q, k), None, None, tokens, tokens, device=str(device))


@cache
def _bend(softcap: float) -> Callable[..., Tensor]:
    """One function for each cap, so that the kernel is compiled once."""
    return lambda score, b, h, query, key: softcap * torch.tanh(score / softcap)
