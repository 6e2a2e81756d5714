"""Attention on a GPU that skips blocks outside a window and may cap scores: torch's flex_attention.

Legend: B batch, T tokens, H heads, G key-value heads, K d_head.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from minitx.nn import masks

BLOCK = 128
"""Queries, and keys, of a block: flex attention's own size."""


def flex_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, softcap: float | None
) -> Tensor:
    """Compute self-attention of unpadded sequences: q [B, H, T, K], k and v [B, G, T, K]."""
    blocks = _block_mask(q.size(2), causal, window, q.device)
    score_mod = None if softcap is None else _score_mod(softcap)
    # Within a compiled step, its own compiler generates the kernel.
    attend = _torch_flex(not torch.compiler.is_compiling())
    return attend(q, k, v, score_mod=score_mod, block_mask=blocks, enable_gqa=q.size(1) != k.size(1))


@cache
def _torch_flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention as torch_flex

    return torch.compile(torch_flex) if compiled else torch_flex


@lru_cache(maxsize=1024)  # many: a CUDA graph may read them
def _block_mask(tokens: int, causal: bool, window: int | None, device: torch.device) -> Any:
    """The blocks of the score matrix that must be computed, as torch's BlockMask; None for all.

    Torch's create_block_mask evaluates every query and key. A compiled step ignores caches and would do so in each
    layer; these few operations on the corners of blocks cost it nothing.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if not (rules := masks.rules(causal, window)):
        return None
    (rule,) = rules
    with torch.inference_mode(False):  # a cached mask serves training too, which cannot save inference tensors
        first = torch.arange(0, tokens, BLOCK, device=device)
        last = first + BLOCK - 1
        (query, query_last), (key, key_last) = (first[:, None], last[:, None]), (first[None, :], last[None, :])
        # A query may attend to all keys within a distance: a block has some such pair if its nearest pair is one, and
        # only such pairs if its corners are.
        some = rule(torch.clamp(key, query, query_last), torch.clamp(query, key, key_last))
        whole = rule(query, key_last) & rule(query_last, key) & (query_last < tokens) & (key_last < tokens)
        part = some & ~whole
        by_query, by_key = (*_listed(part), *_listed(whole)), (*_listed(part.mT), *_listed(whole.mT))
        return BlockMask(
            (tokens, tokens), *by_query, *by_key,
            BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=lambda b, h, query, key: rule(query, key),
        )  # fmt: skip


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The number of True blocks [1, 1, N] in each row of [N, N], and the columns [1, 1, N, N] with those first."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True).contiguous()  # as kernels read it
    return blocks.sum(dim=-1, dtype=torch.int32)[None, None], order.int()[None, None]


@cache
def _score_mod(softcap: float) -> Callable[..., Tensor]:
    """One function object for each cap: a new object would compile a new kernel."""
    return lambda score, b, h, query, key: softcap * torch.tanh(score / softcap)
