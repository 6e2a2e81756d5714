"""Which code computes an attention: torch's fused kernels, its flex_attention on a GPU, or the explicit formula.

Legend: B batch, T tokens, H heads, G key-value heads, K d_head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.nn import masks

HALF = (torch.bfloat16, torch.float16)
SHORT = 200 * 200
"""Queries times keys up to which a CPU's fused kernel is faster in fp32 than in bf16: measured on AVX512-BF16, forward
and backward, 13 times at 17 x 17, 3.7 times at 64 x 64, 2.4 times at 128 x 128, level at 256 x 256."""
WRITTEN_OUT = range(64 * 64, 600 * 600)
"""Queries times keys at which the explicit softmax trains faster in bf16 on a CPU than a fused kernel, whose backward
is slow there: forward and backward 1.0 to 1.8 times at 64 x 64 (the wider the heads, the more), 2 times at 128 x 128
and 256 x 256, 1.6 times at 512 x 512, level at 1024 x 1024. Forward alone it is slower everywhere."""
FLEX_FROM = 1024
"""Tokens from which skipping what a window hides is worth a compiled kernel."""
FLEX_HEAD = 16
"""The narrowest head that flex attention's kernels take."""


def choose_kernel(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
) -> Literal["fused", "flex", "explicit"]:
    """Which code computes this attention; all give the same numbers. The one place where that is decided.

    fused is torch's scaled_dot_product_attention, which picks among its own (see interpret/kernel_names.py); flex skips
    what a window hides and can bend scores, on a GPU, for long sequences without padding; explicit is the rest, and on
    a CPU what torch's compiler makes the most of for one query (a tenth less time than the fused kernel), and what
    trains fastest in bf16 (see WRITTEN_OUT).
    """
    if q.device.type == "cpu":
        if q.size(-2) == 1 and torch.compiler.is_compiling():
            return "explicit"
        if q.requires_grad and q.dtype == torch.bfloat16 and q.size(-2) * k.size(-2) in WRITTEN_OUT:
            return "explicit"
    plain = mask is None and bias is None and not dropout
    square = q.size(-2) == k.size(-2) >= FLEX_FROM and q.size(-1) >= FLEX_HEAD
    if (window or softcap) and plain and square and q.device.type == "cuda":
        return "flex"
    return "explicit" if softcap else "fused"


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    *,
    causal: bool,
    window: int | None,
) -> Tensor:
    """The same numbers from torch's fused kernels."""
    mask, causal = kernel_mask(q, k, mask, bias, causal=causal, window=window)
    dtype = q.dtype
    grouped = k.dim() == 4 and k.size(1) != q.size(1)
    q, k, v, mask = kernel_inputs(q, k, v, mask)
    if q.dtype != dtype:
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
            ).to(dtype)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
    )


def kernel_inputs(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """q, k, v and a kernel_mask as torch's kernels get them: short sequences in half precision in fp32 on a CPU."""
    if q.device.type == "cpu" and q.dtype in HALF and q.size(-2) * k.size(-2) <= SHORT:
        q, k, v = q.float(), k.float(), v.float()
        mask = mask.float() if mask is not None and mask.is_floating_point() else mask
    return q, k, v, mask


def kernel_mask(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, *, causal: bool, window: int | None
) -> tuple[Tensor | None, bool]:
    """The leanest way to tell torch's kernels what may be seen: (one mask, bool or float with the bias; is_causal)."""
    lean = causal and q.size(-2) == k.size(-2) and mask is None and bias is None and window is None
    if not lean:
        mask = masks.combine(mask, masks.visible(q.size(-2), k.size(-2), causal, window, q.device))
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -math.inf)
    return mask, lean


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
