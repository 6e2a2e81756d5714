"""Scaled dot-product attention as a formula: every step visible, all weights in memory.

Legend: B batch, T queries, S keys, H heads, G key-value heads, K d_head.
The kernels in kernels.py compute the same output faster.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def explicit_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    return_weights: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute softmax(q k^T / sqrt(K) + bias) v over the keys that the mask allows (Vaswani et al. 2017, 3.2.1).

    Args:
        q: queries [B, H, T, K].
        k: keys [B, G, S, K], where G divides H: each key-value head serves H / G neighbouring query heads.
        v: values [B, G, S, K].
        mask: bool, broadcastable to [B, H, T, S], True = may attend.
        bias: added to the scaled scores, broadcastable to [B, H, T, S].
        dropout: probability of dropping an attention weight.
        softcap: c, for scores c tanh(score / c) in (-c, c) before bias and mask (Gemma 2).
        return_weights: False saves a pass over the weights, which are then not zeroed in a row without a key.

    Returns:
        The output [B, H, T, K] and the weights [B, H, T, S] before dropout. Both are zero in a row without a key.
    """
    if k.size(-3) != q.size(-3):  # in the head order of torch's enable_gqa
        k, v = (part.repeat_interleave(q.size(-3) // part.size(-3), dim=-3) for part in (k, v))
    scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-2, -1)  # [B, H, T, S]; scaled first, so fp16 does not overflow
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if bias is not None:
        scores = scores + bias
    if scores.dtype == torch.float16:
        scores = scores.float()  # for the low number below
    if mask is not None:
        # A very low number instead of -inf: a row without a key stays finite, and so do its gradients. In any other row
        # the exponential of a hidden score is exactly zero.
        low = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, torch.finfo(scores.dtype).min / 2)
        scores = scores + low
    weights = scores.softmax(dim=-1).to(q.dtype)  # torch sums in fp32, also for bf16
    out = F.dropout(weights, dropout) @ v  # [B, H, T, K]
    if mask is None:
        return out, weights
    empty = ~mask.any(dim=-1, keepdim=True)
    return out.masked_fill(empty, 0.0), weights.masked_fill(empty, 0.0) if return_weights else weights
