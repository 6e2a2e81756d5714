"""Layers on top of one another, with the position signal below and a norm above.

Legend: B batch, T queries, S keys, M memory tokens, D d_model.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from minitx.nn import masks
from minitx.nn.cache import Cache
from minitx.nn.position_ids import consecutive
from minitx.nn.positions import NoPositions


class Stack(nn.Module):
    """Layers in their order, the dropout below them and the norm above.

    Args:
        layers: the layers, lowest first; each is its own construction.
        position: the scheme of this stack, the same object that its attentions hold.
        norm: applied to the result: a LayerNorm for pre-norm layers, None for post-norm ones.
        dropout: dropped share of the embeddings in training.
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        position: NoPositions,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.position = position
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(layers)
        self.norm = norm if norm is not None else nn.Identity()


class EncoderStack(Stack):
    """Bidirectional layers over embedded tokens: encoder layers, arguments as for Stack."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """x [B, T, D], keep [B, T] True for a real token; returns [B, T, D]."""
        pos = consecutive(x.size(1), keep, device=x.device)
        mask = masks.key_padding(keep)
        x = self.dropout(self.position.embed(x, pos))
        for layer in self.layers:
            x = layer(x, mask=mask, pos=pos)
        return self.norm(x)


class DecoderStack(Stack):
    """Causal layers over embedded tokens, with or without a memory: decoder layers, arguments as for Stack."""

    def forward(
        self,
        x: Tensor,
        pos: Tensor,
        keep: Tensor | None = None,
        memory: Tensor | None = None,
        memory_keep: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Run the layers.

        Args:
            x: embedded new tokens [B, T, D].
            pos: their position ids [B, T] or [1, T].
            keep: [B, S], True for a real token, cached ones included; None when all are real.
            memory: [B, M, D], what cross-attention reads.
            memory_keep: [B, M], True for a real memory token.
            cache: keys and values of earlier tokens. Not advanced here: that is the model's to do, once.

        Returns:
            [B, T, D].
        """
        mask, memory_mask = masks.key_padding(keep), masks.key_padding(memory_keep)
        x = self.dropout(self.position.embed(x, pos))
        for index, layer in enumerate(self.layers):
            part = None if cache is None else cache.layer(index)
            x = layer(x, memory, mask=mask, memory_mask=memory_mask, pos=pos, cache=part)
        return self.norm(x)
