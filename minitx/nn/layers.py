"""A layer of an encoder or a decoder: sublayers, each inside Add & Norm.

Legend: B batch, T queries, M memory tokens, D d_model.
"""

from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from minitx.nn.cache import LayerCache
from minitx.nn.errors import require
from minitx.nn.feed_forward import FeedForward
from minitx.nn.multi_head import MultiHeadAttention, Prepared
from minitx.nn.norms import AddNorm


class Layer(nn.Module):
    """Self-attention, attention to a memory if there is one, the feed-forward network (Vaswani et al. 2017, figure 1).

    ffn is None for attention alone. parallel: all sublayers read the layer's input, and their outputs are added to it
    (Wang and Komatsuzaki 2021, GPT-J); shared_norm: they have one norm. Other arguments as for AddNorm.
    """

    causal: ClassVar[bool]
    first_norm: ClassVar[str]
    """The name of the AddNorm around self-attention, as checkpoints have it."""
    add_norm_cross: AddNorm
    add_norm_ffn: AddNorm

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
        for name, sublayer in {self.first_norm: self_attn, "add_norm_cross": cross_attn, "add_norm_ffn": ffn}.items():
            if sublayer is not None:
                setattr(self, name, AddNorm(d_model, norm_first, dropout, **norm))
                if shared_norm:
                    getattr(self, name).norm = getattr(self, self.first_norm).norm

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        prepared: Prepared | None = None,
        cross_prepared: Prepared | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Apply the sublayers to x [B, T, D], with attention to memory [B, M, D] in a layer that has cross_attn.

        prepared and cross_prepared are for the two attentions, without padding by default; cache is this layer's part.
        """
        attend = partial(self.self_attn, causal=self.causal, cache=cache, prepared=prepared)
        out = getattr(self, self.first_norm)(x, attend)
        if self.cross_attn is not None:
            require(memory is not None, "a layer with cross-attention needs a memory")
            attend = partial(self.cross_attn, memory=memory, cache=cache, prepared=cross_prepared)
            out = self.add_norm_cross(x if self.parallel else out, attend, out)
        if self.ffn is not None:
            out = self.add_norm_ffn(x if self.parallel else out, self.ffn, out)
        return out


class EncoderLayer(Layer):
    """Self-attention in both directions (figure 1, left)."""

    causal, first_norm = False, "add_norm_attn"


class DecoderLayer(Layer):
    """Causal self-attention (figure 1, right); cross_attn is None for a decoder alone (GPT)."""

    causal, first_norm = True, "add_norm_self"
