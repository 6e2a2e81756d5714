"""Scaled dot-product attention: the heart of the house.

Legend: B batch, T queries, S keys, H heads, G key-value heads, K d_head.
Knows nothing of layers, models or text. Masks are bool, True = may attend (see masks.py).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from minitx.nn import masks
from minitx.nn.flex import flex_attention

HALF = (torch.bfloat16, torch.float16)
SHORT = 200 * 200
"""Queries times keys up to which a CPU's fused kernel is faster in fp32 than in bf16: measured on AVX512-BF16, forward
and backward, 13 times at 17 x 17, 3.7 times at 64 x 64, 2.4 times at 128 x 128, level at 256 x 256."""
WRITTEN_OUT = range(64 * 64, 600 * 600)
"""Queries times keys at which the explicit softmax trains faster in bf16 on a CPU than a fused kernel, whose backward
is slow there: forward and backward 1.0 to 1.8 times at 64 x 64 (the wider the heads, the more), 2 times at 128 x 128
and 256 x 256, 1.6 times at 512 x 512, level at 1024 x 1024. Forward alone it is slower everywhere."""
MASKED_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Torch's kernels where a mask or a bias is given. With one, the backward of cuDNN's gives NaN for the queries where
tokens % 128 is 64 and scores are low (pytorch issue 196678)."""
FLEX_FROM = 1024
"""Tokens from which skipping what a window hides is worth a compiled kernel."""
FLEX_HEAD = 16
"""The narrowest head that flex attention's kernels take."""


@overload
def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    return_weights: Literal[False] = False,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor: ...


@overload
def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    *,
    return_weights: Literal[True],
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]: ...


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(K) + bias) v over the keys that may be seen (Vaswani et al. 2017, section 3.2.1).

    Args:
        q: queries [B, H, T, K].
        k: keys [B, G, S, K], where G divides H: each key-value head serves H / G neighbouring query heads.
        v: values [B, G, S, K].
        mask: bool, broadcastable to [B, H, T, S], True = may attend. A row that may attend to nothing gives zeros.
        bias: added to the scaled scores, broadcastable to [B, H, T, S].
        dropout: the probability with which an attention weight is dropped. Always applied: pass 0 in evaluation.
        return_weights: also return the weights [B, H, T, S], taken before dropout, from the explicit softmax.
            Without them a fused kernel computes the same output and never holds the [T, S] matrix.
        causal: also apply the right-aligned causal mask. The fused kernels then need no mask tensor.
        window: also hide all but the nearest keys, `window` of them, the query's own included; see masks.window.
        softcap: bend the scaled scores, before bias and mask, into (-softcap, softcap): c tanh(score / c) (Gemma 2).

    Returns:
        The output [B, H, T, K], or (output, weights).
    """
    if return_weights:
        return explicit_attention(q, k, v, mask, bias, dropout, True, causal=causal, window=window, softcap=softcap)
    kernel = choose_kernel(q, k, mask, bias, dropout, causal=causal, window=window, softcap=softcap)
    if kernel == "flex":
        return flex_attention(q, k, v, causal=causal, window=window, softcap=softcap)
    if kernel == "explicit":
        return explicit_attention(q, k, v, mask, bias, dropout, causal=causal, window=window, softcap=softcap)[0]
    return fused_attention(q, k, v, mask, bias, dropout, causal=causal, window=window)


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

    fused is torch's scaled_dot_product_attention, which picks among its own (see inspection/kernels.py); flex skips
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


def explicit_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    return_weights: bool = False,
    *,
    causal: bool,
    window: int | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Attention as it is written in the paper: every step visible, the weights [B, H, T, S] in memory.

    The output of a row that may attend to nothing is zero; its weights are so only if weights are asked for.
    """
    if k.size(-3) != q.size(-3):  # grouped heads, in the order of torch's enable_gqa
        k, v = (part.repeat_interleave(q.size(-3) // part.size(-3), dim=-3) for part in (k, v))
    scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-2, -1)  # [B, H, T, S]; scaled first, fp16 does not overflow
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if bias is not None:
        scores = scores + bias
    sees_itself = mask is None and q.size(-2) <= k.size(-2)
    mask = masks.combine(mask, _visible(q, k, causal, window))
    if scores.dtype == torch.float16:
        scores = scores.float()  # fp16 has no number so low
    if mask is not None:
        # A very low number, not -inf: a row without any key stays finite, with finite gradients, and is set to zero in
        # the end; elsewhere the exponential of so low a number is exactly zero already.
        low = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, torch.finfo(scores.dtype).min / 2)
        scores = scores + low
    weights = scores.softmax(dim=-1).to(q.dtype)  # adds up in fp32 in bf16 too
    out = F.dropout(weights, dropout) @ v
    if mask is None or sees_itself:
        return out, weights
    blind = ~mask.any(dim=-1, keepdim=True)
    return out.masked_fill(blind, 0.0), weights.masked_fill(blind, 0.0) if return_weights else weights


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
    attend = partial(
        F.scaled_dot_product_attention, q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
    )
    if q.dtype != dtype:
        with torch.autocast("cpu", enabled=False):
            return attend().to(dtype)
    if mask is None or q.device.type != "cuda":
        return attend()
    if torch.compiler.is_compiling():
        with sdpa_kernel(MASKED_KERNELS):
            return attend()
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)  # as sdpa_kernel would, in a twentieth of its time
    try:
        return attend()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


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
        mask = masks.combine(mask, _visible(q, k, causal, window))
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -math.inf)
    return mask, lean


def _visible(q: Tensor, k: Tensor, causal: bool, window: int | None) -> Tensor | None:
    """The mask [T, S] of causality and window; None without either, and where the last query sees every key."""
    if window is not None:
        rules = [masks.window(window, causal=causal)]
    else:
        rules = [masks.causal] if causal and q.size(-2) > 1 else []
    return masks.build(*rules, queries=q.size(-2), keys=k.size(-2), device=q.device) if rules else None
