"""Multi-head attention: several heads look at the same sequence, each in its own way.

Legend: B batch, T queries, S keys, H heads, G key-value heads, K d_head, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitx.nn import masks
from minitx.nn.attention import scaled_dot_product_attention
from minitx.nn.cache import LayerCache, StaticLayerCache
from minitx.nn.norms import RMSNorm
from minitx.nn.position_ids import consecutive
from minitx.nn.positions import NoPositions

AttentionFunction = Callable[..., Any]
"""What computes attention inside a module: scaled_dot_product_attention, or something around it, called alike."""


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
        softcap: bends the scores into (-softcap, softcap), see scaled_dot_product_attention; None leaves them.
        qkv_bias: whether the maps to queries, keys and values have biases, where they differ from o_proj (Qwen2).

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
        softcap: float | None = None,
        qkv_bias: bool | None = None,
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
        if softcap is not None and softcap <= 0.0:
            raise ValueError(f"model.softcap must be positive, got {softcap}")
        if window is not None:
            masks.window(window, causal=True)  # refuses an impossible size now rather than in forward
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.window, self.dropout, self.softcap = window, dropout, softcap
        qkv_bias = bias if qkv_bias is None else qkv_bias
        self.q_proj = nn.Linear(d_model, n_heads * self.d_head, bias=qkv_bias)
        self.k_proj = nn.Linear(d_model, n_kv_heads * self.d_head, bias=qkv_bias)
        self.v_proj = nn.Linear(d_model, n_kv_heads * self.d_head, bias=qkv_bias)
        self.o_proj = nn.Linear(n_heads * self.d_head, d_model, bias=bias)
        self.q_norm = RMSNorm(self.d_head) if qk_norm else None
        self.k_norm = RMSNorm(self.d_head) if qk_norm else None
        self.position = position if position is not None else NoPositions(d_model, n_heads, self.d_head, False)
        self.attention: AttentionFunction = scaled_dot_product_attention  # what record_attention swaps

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        pos: Tensor | None = None,
        cache: LayerCache | StaticLayerCache | None = None,
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
        bias = None
        if memory is None:
            if pos is None:
                pos = consecutive(x.size(1), device=x.device)
            q, k, v = self._queries_keys_values(x, cache)
            q, k = self.position.rotate(q, pos), self.position.rotate(k, pos)
            key_pos = pos
            if cache is not None:
                k, v, key_pos = cache.extend(k, v, pos, self.window)
                if mask is not None:
                    mask = mask[..., -k.size(2) :]  # a window has let go of what no query sees any more
            bias = self.position.bias(q, k, pos, key_pos)
        else:
            q = _normed(self._split(self.q_proj(x)), self.q_norm)
            k, v = self._keys_values(memory) if cache is None else cache.once(lambda: self._keys_values(memory))
        dropout = self.dropout if self.training else 0.0
        out = self.attention(
            q, k, v, mask=mask, bias=bias, dropout=dropout, causal=causal, window=self.window, softcap=self.softcap
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))  # [B, T, D]

    def _queries_keys_values(
        self, x: Tensor, cache: LayerCache | StaticLayerCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, T, K], keys and values [B, G, T, K] of x."""
        maps = (self.q_proj, self.k_proj, self.v_proj)
        # A cache reads few tokens at a time: one product there, its weights joined once and remembered.
        q, k, v = self._projected(x, *maps, joined=None if cache is None else cache.joined(lambda: _joined(maps)))
        return _normed(q, self.q_norm), _normed(k, self.k_norm), v

    def _keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of memory [B, S, D], each [B, G, S, K]."""
        k, v = self._projected(memory, self.k_proj, self.v_proj)
        return _normed(k, self.k_norm), v

    def _projected(
        self, x: Tensor, *maps: nn.Linear, joined: tuple[Tensor, Tensor | None] | None = None
    ) -> list[Tensor]:
        """What each map makes of x [B, T, D], by head: [B, heads, T, K].

        From one product where that is faster: with weights that are joined already, and under autocast, which then
        converts x once (in bf16 on a CPU 1.1 to 1.35 times as fast, forward and backward; in fp32 it makes no odds).
        """
        if joined is None:
            if x.device.type == "meta" or not torch.is_autocast_enabled(x.device.type):
                return [self._split(part(x)) for part in maps]
            joined = _joined(maps)
        # Taken apart before the heads are: backward then joins the gradients in the order that the product wants.
        return [self._split(part) for part in F.linear(x, *joined).split([part.out_features for part in maps], dim=2)]

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, heads * K] to [B, heads, T, K]."""
        return x.unflatten(2, (-1, self.d_head)).transpose(1, 2)


def _joined(maps: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of several maps as one."""
    weights: list[Tensor] = [part.weight for part in maps]
    biases: list[Tensor] = [part.bias for part in maps if part.bias is not None]
    return torch.cat(weights), torch.cat(biases) if biases else None


def _normed(x: Tensor, norm: nn.Module | None) -> Tensor:
    normed: Tensor = x if norm is None else norm(x)
    return normed
