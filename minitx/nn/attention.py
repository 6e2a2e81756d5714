"""Scaled dot-product attention and its multi-head form: the heart of the house.

Legend: B batch, T queries, S keys, H heads, G key-value heads, K d_head, D d_model.
Knows nothing of layers, models or text. Masks are bool, True = may attend (see masks.py).
"""

from __future__ import annotations

import math
from typing import Literal, Protocol, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitx.nn import masks
from minitx.nn.cache import LayerCache
from minitx.nn.norms import RMSNorm
from minitx.nn.position_ids import consecutive
from minitx.nn.positions import NoPositions

HALF = (torch.bfloat16, torch.float16)
SHORT = 200 * 200
"""Queries times keys up to which a CPU's fused kernel is faster in fp32 than in bf16: measured on AVX512-BF16, forward
and backward, 13 times at 17 x 17, 3.7 times at 64 x 64, 2.4 times at 128 x 128, level at 256 x 256."""


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
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(K) + bias) v over the keys that mask allows (Vaswani et al. 2017, section 3.2.1).

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

    Returns:
        The output [B, H, T, K], or (output, weights).
    """
    if return_weights:
        return explicit_attention(q, k, v, mask, bias, dropout, causal=causal)
    return fused_attention(q, k, v, mask, bias, dropout, causal=causal)


def explicit_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, dropout: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Attention as it is written in the paper: every step visible, the weights [B, H, T, S] in memory."""
    queries, keys = q.size(-2), k.size(-2)
    if k.size(-3) != q.size(-3):  # grouped heads, in the order of torch's enable_gqa
        k, v = (part.repeat_interleave(q.size(-3) // part.size(-3), dim=-3) for part in (k, v))
    scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-2, -1)  # [B, H, T, S]; scaled first, fp16 does not overflow
    if bias is not None:
        scores = scores + bias
    if causal:
        mask = masks.combine(mask, masks.build(masks.causal, queries=queries, keys=keys, device=q.device))
    if scores.dtype in HALF:
        scores = scores.float()  # the sum of many small exponentials is not for half precision
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        # The lowest finite number, not -inf: a row without any key stays finite, with finite gradients, and is
        # then set to zero; elsewhere the exponential of the lowest number is exactly zero already.
        lowest = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~mask, lowest).softmax(dim=-1).masked_fill(~mask, 0.0)
    weights = weights.to(q.dtype)
    return F.dropout(weights, dropout) @ v, weights


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, dropout: float, *, causal: bool
) -> Tensor:
    """The same numbers from torch's fused kernels; picks the leanest way to tell them what is masked."""
    queries, keys = q.size(-2), k.size(-2)
    causal = causal and queries > 1  # the last query sees every key
    lean = causal and queries == keys and mask is None and bias is None  # what is_causal can express by itself
    if causal and not lean:
        mask = masks.combine(mask, masks.build(masks.causal, queries=queries, keys=keys, device=q.device))
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -math.inf)
    grouped = k.dim() == 4 and k.size(1) != q.size(1)
    if q.device.type == "cpu" and q.dtype in HALF and queries * keys <= SHORT:
        dtype = q.dtype
        q, k, v = q.float(), k.float(), v.float()
        mask = mask.float() if mask is not None and mask.is_floating_point() else mask
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=lean, enable_gqa=grouped
            ).to(dtype)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=lean, enable_gqa=grouped
    )


class AttentionFunction(Protocol):
    """What computes attention inside a module: scaled_dot_product_attention, or a recorder around it."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        dropout: float = 0.0,
        *,
        causal: bool = False,
    ) -> Tensor:
        """See scaled_dot_product_attention."""


class MultiHeadAttention(nn.Module):
    """Multi-head attention, self or cross (Vaswani et al. 2017, section 3.2.2).

    Args:
        d_model: width of the input and the output.
        n_heads: number of query heads H.
        n_kv_heads: number of key-value heads G, a divisor of n_heads: H (default) is multi-head, 1 multi-query
            (Shazeer 2019), between them grouped-query attention (Ainslie et al. 2023).
        d_head: width of one head, d_model / n_heads by default.
        position: a position scheme whose rotate and bias hooks are applied (self-attention only).
        window: number of keys that a query may see, itself included; None for all.
        dropout: dropped share of the attention weights in training.
        qk_norm: RMS-normalise queries and keys by head before they meet (Henry et al. 2020).
        bias: whether the four projections have biases.

    Raises:
        ValueError: numbers that do not fit together, naming the config key to change.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        position: NoPositions | None = None,
        window: int | None = None,
        dropout: float = 0.0,
        qk_norm: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        if n_heads < 1 or d_model < 1:
            raise ValueError(
                f"model.d_model and model.n_heads must be positive, got d_model {d_model} and n_heads {n_heads}"
            )
        if d_head is None and d_model % n_heads:
            raise ValueError(
                f"model.d_model must be divisible by model.n_heads, got d_model {d_model} and n_heads {n_heads} "
                "(or set model.d_head)"
            )
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            raise ValueError(f"model.n_heads must be divisible by model.n_kv_heads, got {n_heads} and {n_kv_heads}")
        if d_head is not None and d_head < 1:
            raise ValueError(f"model.d_head must be positive, got {d_head}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"model.attention_dropout must lie in [0, 1), got {dropout}")
        if window is not None:
            masks.window(window, causal=True)  # refuses an impossible size now rather than in forward
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.window, self.dropout = window, dropout
        self.q_proj = nn.Linear(d_model, n_heads * self.d_head, bias=bias)
        self.k_proj = nn.Linear(d_model, n_kv_heads * self.d_head, bias=bias)
        self.v_proj = nn.Linear(d_model, n_kv_heads * self.d_head, bias=bias)
        self.o_proj = nn.Linear(n_heads * self.d_head, d_model, bias=bias)
        self.q_norm = RMSNorm(self.d_head) if qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.d_head) if qk_norm else nn.Identity()
        self.position = position if position is not None else NoPositions(d_model, n_heads, self.d_head, False)
        self.attention: AttentionFunction = scaled_dot_product_attention  # what record_attention swaps

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Let each row of x gather from x itself (self-attention) or from memory (cross-attention).

        Args:
            x: [B, T, D], what asks.
            memory: [B, S, D], what is asked, for cross-attention.
            mask: bool, broadcastable to [B, H, T, S], True = may attend; S counts cached keys too.
            causal: hide the future (self-attention).
            pos: position ids of x, [B, T] or [1, T]; consecutive by default.
            cache: what this layer remembers of earlier calls: its keys and values, and the projected memory.

        Returns:
            [B, T, D].
        """
        q = self.q_norm(self._split(self.q_proj(x), self.n_heads))  # [B, H, T, K]
        bias = None
        if memory is None:
            if pos is None:
                pos = consecutive(x.size(1), device=x.device)
            k, v = self._keys_values(x)
            q, k = self.position.rotate(q, pos), self.position.rotate(k, pos)
            key_pos = pos
            if cache is not None:
                k, v, key_pos = cache.extend(k, v, pos)
            bias = self.position.bias(q, k, pos, key_pos)
        else:
            k, v = self._keys_values(memory) if cache is None else cache.once(lambda: self._keys_values(memory))
        if self.window is not None:
            near = masks.window(self.window, causal=causal)
            mask = masks.combine(mask, masks.build(near, queries=q.size(2), keys=k.size(2), device=x.device))
            causal = False  # the causal window already hides the future
        dropout = self.dropout if self.training else 0.0
        out = self.attention(q, k, v, mask=mask, bias=bias, dropout=dropout, causal=causal)
        return self.o_proj(out.transpose(1, 2).flatten(2))  # [B, T, D]

    def _keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of source [B, S, D], each [B, G, S, K]."""
        k = self.k_norm(self._split(self.k_proj(source), self.n_kv_heads))
        return k, self._split(self.v_proj(source), self.n_kv_heads)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """[B, T, H * K] to [B, H, T, K]."""
        return x.unflatten(2, (heads, self.d_head)).transpose(1, 2)
