"""Layers on top of one another, with the position signal below and a norm above.

Legend: B batch, T queries, S keys, M memory tokens, D d_model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minitx.nn import masks
from minitx.nn.cache import Cache, StaticCache
from minitx.nn.norms import thinned
from minitx.nn.position_ids import ConsecutiveIds
from minitx.nn.positions import NoPositions


class Stack(nn.Module):
    """Layers in their order, the dropout below them and the norm above.

    Args:
        layers: the layers, lowest first; each is its own construction.
        position: the scheme of this stack, the same object that its attentions hold.
        norm: applied to the result: a LayerNorm for pre-norm layers, None for post-norm ones.
        dropout: dropped share of the embeddings in training.
        position_ids: how a model shall number the tokens of this stack; consecutively by default.
        embedding_norm: applied to the embeddings once their positions are added (BERT); None leaves them.
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        position: NoPositions,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        position_ids: ConsecutiveIds | None = None,
        embedding_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.position = position
        self.position_ids = position_ids if position_ids is not None else ConsecutiveIds(causal=True)
        self.embedding_norm = embedding_norm if embedding_norm is not None else nn.Identity()
        self.dropout = dropout
        self.layers = nn.ModuleList(layers)
        self.norm = norm if norm is not None else nn.Identity()
        self.recompute = False
        """Whether training keeps only what goes into each layer and computes the layer again in the backward."""

    def through(self, layer: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """Call a layer, keeping what its backward needs or, in training with `recompute`, only what goes into it."""
        if self.recompute and self.training and torch.is_grad_enabled():
            return checkpoint(layer, *args, use_reentrant=False, **kwargs)
        out: Tensor = layer(*args, **kwargs)
        return out

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Embedded tokens [B, T, D] with their positions, normalised if so asked, thinned by dropout."""
        return thinned(self.embedding_norm(self.position.embed(x, pos)), self.dropout, self.training)


class EncoderStack(Stack):
    """Bidirectional layers over embedded tokens: encoder layers, arguments as for Stack."""

    def forward(self, x: Tensor, pos: Tensor, keep: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Run the layers.

        Args:
            x: embedded tokens [B, T, D].
            pos: their position ids [B, T] or [1, T].
            keep: [B, T], True for a real token; None when all are.
            mask: what else hides a key from a query, broadcastable to [B, H, T, T].

        Returns:
            [B, T, D].
        """
        mask = masks.combine(masks.key_padding(keep), mask)
        x = self.embed(x, pos)
        for layer in self.layers:
            x = self.through(layer, x, mask=mask, pos=pos)
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
        cache: Cache | StaticCache | None = None,
        mask: Tensor | None = None,
        causal: bool = True,
    ) -> Tensor:
        """Run the layers.

        Args:
            x: embedded new tokens [B, T, D].
            pos: their position ids [B, T] or [1, T].
            keep: [B, S], True for a real token, cached ones included; None when all are real.
            memory: [B, M, D], what cross-attention reads.
            memory_keep: [B, M], True for a real memory token.
            cache: keys and values of earlier tokens. Not advanced here: that is the model's to do, once.
            mask: what else hides a key from a query, broadcastable to [B, H, T, S].
            causal: hide the future; False when the mask says what may be seen of it.

        Returns:
            [B, T, D].
        """
        mask = masks.combine(masks.key_padding(keep), mask)
        memory_mask = masks.key_padding(memory_keep)
        x = self.embed(x, pos)
        for index, layer in enumerate(self.layers):
            part = None if cache is None else cache.layer(index)
            x = self.through(layer, x, memory, mask=mask, memory_mask=memory_mask, pos=pos, cache=part, causal=causal)
        return self.norm(x)
