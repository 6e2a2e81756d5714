"""Scaled dot-product attention: the heart of the house.

Legend: B batch, T queries, S keys, H heads, G key-value heads, K d_head.
Knows nothing of layers, models or text. Masks are bool, True = may attend (see masks.py).
"""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.nn import masks
from minitx.nn.kernels import choose_kernel, flex_attention, fused_attention


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
    mask = masks.combine(mask, masks.visible(q.size(-2), k.size(-2), causal, window, q.device))
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
