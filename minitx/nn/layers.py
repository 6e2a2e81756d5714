"""One layer of an encoder and one of a decoder: sublayers, each inside Add & Norm.

Legend: B batch, T queries, S keys, M memory tokens, H heads, D d_model.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from minitx.nn.cache import LayerCache
from minitx.nn.feed_forward import FeedForward
from minitx.nn.multi_head import MultiHeadAttention, Prepared
from minitx.nn.norms import AddNorm


class EncoderLayer(nn.Module):
    """Self-attention in both directions, then the feed-forward network (Vaswani et al. 2017, figure 1, left).

    ffn is None for attention alone. parallel: all sublayers read the layer's input, and their outputs are added to it
    (Wang and Komatsuzaki 2021, GPT-J); shared_norm: they have one norm. Other arguments as for AddNorm.
    """

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        ffn: FeedForward | None,
        d_model: int,
        norm_first: bool = True,
        dropout: float = 0.0,
        parallel: bool = False,
        shared_norm: bool = False,
        **norm: Any,
    ) -> None:
        super().__init__()
        self.self_attn, self.ffn, self.parallel = self_attn, ffn, parallel
        add_norm = partial(AddNorm, d_model, norm_first, dropout, **norm)
        self.add_norm_attn = add_norm()
        self.add_norm_ffn = add_norm() if ffn is not None else None
        if shared_norm and self.add_norm_ffn is not None:
            self.add_norm_ffn.norm = self.add_norm_attn.norm

    def forward(self, x: Tensor, prepared: Prepared | None = None) -> Tensor:
        """Apply the sublayers to x [B, T, D]; `prepared` is for consecutive positions without padding by default."""
        out = self.add_norm_attn(x, lambda h: self.self_attn(h, prepared=prepared))
        if self.ffn is not None and self.add_norm_ffn is not None:
            out = self.add_norm_ffn(x if self.parallel else out, self.ffn, out)
        return out


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to a memory if there is one, the feed-forward network (figure 1, right).

    cross_attn is None for a decoder alone (GPT); other arguments as for EncoderLayer.
    """

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        ffn: FeedForward | None,
        d_model: int,
        cross_attn: MultiHeadAttention | None = None,
        norm_first: bool = True,
        dropout: float = 0.0,
        parallel: bool = False,
        shared_norm: bool = False,
        **norm: Any,
    ) -> None:
        super().__init__()
        self.self_attn, self.cross_attn, self.ffn, self.parallel = self_attn, cross_attn, ffn, parallel
        add_norm = partial(AddNorm, d_model, norm_first, dropout, **norm)
        self.add_norm_self = add_norm()
        self.add_norm_cross = add_norm() if cross_attn is not None else None
        self.add_norm_ffn = add_norm() if ffn is not None else None
        for each in (self.add_norm_cross, self.add_norm_ffn):
            if shared_norm and each is not None:
                each.norm = self.add_norm_self.norm

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        prepared: Prepared | None = None,
        cross_prepared: Prepared | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Apply the sublayers to x [B, T, D], with attention to memory [B, M, D] in a layer that has cross_attn.

        prepared is for self-attention, by default causal without padding; cross_prepared is for cross-attention, by
        default without padding. cache is this layer's part of a Cache.
        """
        out = self.add_norm_self(x, lambda h: self.self_attn(h, causal=True, cache=cache, prepared=prepared))
        if self.cross_attn is not None and self.add_norm_cross is not None:
            attend = partial(self.cross_attn, memory=memory, cache=cache, prepared=cross_prepared)
            out = self.add_norm_cross(x if self.parallel else out, attend, out)
        if self.ffn is not None and self.add_norm_ffn is not None:
            out = self.add_norm_ffn(x if self.parallel else out, self.ffn, out)
        return out
