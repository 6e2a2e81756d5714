"""One layer of an encoder and one of a decoder: sublayers, each inside Add & Norm.

Legend: B batch, T queries, S keys, M memory tokens, H heads, D d_model.
"""

from __future__ import annotations

from torch import Tensor, nn

from minitx.nn.cache import LayerCache, StaticLayerCache
from minitx.nn.feed_forward import FeedForward
from minitx.nn.multi_head import MultiHeadAttention, Prepared
from minitx.nn.norms import AddNorm


class EncoderLayer(nn.Module):
    """Self-attention in both directions, then the feed-forward network (Vaswani et al. 2017, figure 1, left).

    Args:
        self_attn: its attention.
        ffn: its feed-forward network; None for attention alone.
        d_model: width D.
        norm_first: pre-norm if True, else post-norm.
        dropout: dropout of each sublayer's output in training.
        norm: a name in NORMS.
        norm_eps: see build_norm.
    """

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        ffn: FeedForward | None,
        d_model: int,
        norm_first: bool = True,
        dropout: float = 0.0,
        norm: str = "layernorm",
        norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.self_attn, self.ffn = self_attn, ffn
        self.add_norm_attn = AddNorm(d_model, norm_first, dropout, norm, norm_eps)
        self.add_norm_ffn = AddNorm(d_model, norm_first, dropout, norm, norm_eps) if ffn is not None else None

    def forward(self, x: Tensor, prepared: Prepared | None = None) -> Tensor:
        """x [B, T, D] to [B, T, D]; prepared by the stack, for consecutive positions without padding by default."""
        x = self.add_norm_attn(x, lambda h: self.self_attn(h, prepared=prepared))
        return x if self.ffn is None or self.add_norm_ffn is None else self.add_norm_ffn(x, self.ffn)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to a memory if there is one, the feed-forward network (figure 1, right).

    Arguments as for EncoderLayer, and:

    Args:
        cross_attn: attention to the encoder's output; None for a decoder alone (GPT).
    """

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        ffn: FeedForward | None,
        d_model: int,
        cross_attn: MultiHeadAttention | None = None,
        norm_first: bool = True,
        dropout: float = 0.0,
        norm: str = "layernorm",
        norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.self_attn, self.cross_attn, self.ffn = self_attn, cross_attn, ffn
        self.add_norm_self = AddNorm(d_model, norm_first, dropout, norm, norm_eps)
        self.add_norm_cross = AddNorm(d_model, norm_first, dropout, norm, norm_eps) if cross_attn is not None else None
        self.add_norm_ffn = AddNorm(d_model, norm_first, dropout, norm, norm_eps) if ffn is not None else None

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        prepared: Prepared | None = None,
        cross_prepared: Prepared | None = None,
        cache: LayerCache | StaticLayerCache | None = None,
    ) -> Tensor:
        """Apply the sublayers; returns [B, T, D].

        Args:
            x: [B, T, D].
            memory: [B, M, D], for a layer with cross-attention.
            prepared: by the stack for self-attention; causal without padding by default.
            cross_prepared: by the stack for cross-attention; without padding by default.
            cache: this layer's part of a Cache.
        """
        x = self.add_norm_self(x, lambda h: self.self_attn(h, causal=True, cache=cache, prepared=prepared))
        if self.cross_attn is not None and self.add_norm_cross is not None:
            attend = self.cross_attn
            x = self.add_norm_cross(x, lambda h: attend(h, memory, cache=cache, prepared=cross_prepared))
        return x if self.ffn is None or self.add_norm_ffn is None else self.add_norm_ffn(x, self.ffn)
