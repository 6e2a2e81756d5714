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

BLOCK = 128
"""Queries, and keys, of a block: flex attention's own size."""


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
    """Which blocks of the score matrix must be computed at all, as torch's BlockMask; None for all.

    Torch's own create_block_mask looks at every query and key. A compiled step ignores caches and would do so in each
    layer; what is computed here, from the corners of blocks, costs it nothing.
    """
    from torch.nn.attention.flex_attention import BlockMask

    rule = _rule(causal, window)
    if rule is None:
        return None
    with torch.inference_mode(False):  # kept for training too, which may save no tensor made in inference mode
        first = torch.arange(0, tokens, BLOCK, device=device)
        last = first + BLOCK - 1
        (query, query_last), (key, key_last) = (first[:, None], last[:, None]), (first[None, :], last[None, :])
        # All within some distance of a query are seen: of a block its nearest pair first, and last one at its corners.
        seen = rule(torch.clamp(key, query, query_last), torch.clamp(query, key, key_last))
        whole = rule(query, key_last) & rule(query_last, key) & (query_last < tokens) & (key_last < tokens)
        partly = seen & ~whole
        return BlockMask(
            (tokens, tokens),
            *_listed(partly),
            *_listed(whole),
            *_listed(partly.mT),
            *_listed(whole.mT),
            BLOCK_SIZE=(BLOCK, BLOCK),
            mask_mod=_by_index(rule),
        )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks [1, 1, N] of each row of [N, N] are True, and the columns [1, 1, N, N] with those first."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32)[None, None], order.int()[None, None]


def _rule(causal: bool, window: int | None) -> masks.Predicate | None:
    """Which query may look at which key; None where all may."""
    if window is None:
        return masks.causal if causal else None
    return masks.window(window, causal=causal)


def _by_index(rule: masks.Predicate) -> Callable[..., Tensor]:
    """A rule as flex attention calls it."""
    return lambda b, h, query, key: rule(query, key)


@cache
def _bend(softcap: float) -> Callable[..., Tensor]:
    """One function for each cap, so that the kernel is compiled once."""
    return lambda score, b, h, query, key: softcap * torch.tanh(score / softcap)
