"""Attention on a GPU that skips blocks outside a window and may cap scores: torch's flex_attention.

Legend: B batch, T tokens, H heads, G key-value heads, K d_head.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from minitx.nn import masks

BLOCK = 128  # queries and keys of a block: flex attention's own size
MAX_KERNELS = 64
"""Maximum number of compiled kernels, one for each window, cap and dtype (torch: 8). Further ones store all scores."""


def flex_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, softcap: float | None
) -> Tensor:
    """Compute self-attention of unpadded sequences: q [B, H, T, K], k and v [B, G, T, K]."""
    blocks = _block_mask(q.size(2), causal, window, q.device)
    attend = _torch_flex(not torch.compiler.is_compiling())  # a compiled step has a compiler of its own
    return attend(q, k, v, score_mod=_score_mod(softcap), block_mask=blocks, enable_gqa=q.size(1) != k.size(1))


@cache
def _torch_flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention as torch_flex

    if not compiled:
        return torch_flex
    return torch._dynamo.config.patch(recompile_limit=MAX_KERNELS)(torch.compile(torch_flex))


@lru_cache(maxsize=1024)  # more than a run needs: a CUDA graph still reads a mask that is dropped here
def _block_mask(tokens: int, causal: bool, window: int | None, device: torch.device) -> Any:
    """The blocks of the score matrix that must be computed, as torch's BlockMask; None for all.

    torch's create_block_mask evaluates every query and key: in each layer of a compiled step, which ignores caches.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if not (rules := masks.rules(causal, window)):
        return None
    (rule,) = rules
    with torch.inference_mode(False):  # a cached mask serves training too, which cannot save inference tensors
        first = torch.arange(0, tokens, BLOCK, device=device)
        last = first + BLOCK - 1
        (query, query_last), (key, key_last) = (first[:, None], last[:, None]), (first[None, :], last[None, :])
        # Pairs within a distance are allowed: some of a block if its nearest pair is, all of them if its corners are.
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
    order = blocks.int().argsort(dim=-1, descending=True, stable=True).contiguous()  # which kernels require
    return blocks.sum(dim=-1, dtype=torch.int32)[None, None], order.int()[None, None]


@cache
def _score_mod(softcap: float | None) -> Callable[..., Tensor] | None:
    """One function object for each cap: a new object would compile a new kernel."""
    return None if softcap is None else lambda score, b, h, query, key: softcap * torch.tanh(score / softcap)
