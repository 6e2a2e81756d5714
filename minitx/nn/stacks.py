"""Layers in their order, with embedded positions below and a norm above.

Legend: B batch, T queries, S keys, M memory tokens, D d_model.
A stack prepares once per forward what its layers have in common: angles, distances, mask and bias.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minitx.nn import masks
from minitx.nn.cache import Cache, StaticCache
from minitx.nn.norms import dropped
from minitx.nn.position_ids import ConsecutiveIds
from minitx.nn.positions import NoPositions


class Stack(nn.Module):
    """Layers in their order, the dropout below them and the norm above.

    Args:
        layers: the layers, lowest first; each is its own construction. Their self-attentions have one window, and
            their position schemes differ in weights at most.
        position: the scheme of this stack, the same object that its attentions hold.
        norm: applied to the result: a LayerNorm for pre-norm layers, None for post-norm ones.
        dropout: dropout of the embeddings in training.
        position_ids: how a model numbers the tokens of this stack; consecutively by default.
        embedding_norm: applied to the embeddings after their positions are added (BERT); None for no norm.
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
        """Whether training keeps only the input of each layer and computes the layer again in the backward."""

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Add positions to embedded tokens [B, T, D], normalise if so configured, apply dropout."""
        return dropped(self.embedding_norm(self.position.embed(x, pos)), self.dropout, self.training)

    def run_layer(self, layer: nn.Module, *args: Any) -> Tensor:
        """Call a layer; in training with `recompute`, keep only its input for the backward."""
        if self.recompute and self.training and torch.is_grad_enabled():
            return checkpoint(layer, *args, use_reentrant=False)
        out: Tensor = layer(*args)
        return out


class EncoderStack(Stack):
    """Bidirectional layers over embedded tokens: encoder layers, arguments as for Stack."""

    def forward(
        self, x: Tensor, pos: Tensor, keep: Tensor | None = None, rules: Sequence[masks.Predicate] = ()
    ) -> Tensor:
        """Run the layers; returns [B, T, D].

        Args:
            x: embedded tokens [B, T, D].
            pos: their position ids [B, T] or [1, T].
            keep: [B, T], True for a real token; None when all are.
            rules: further predicates on which key a query may attend to.
        """
        x = self.embed(x, pos)
        first: Any = self.layers[0]
        prepared = first.self_attn.prepare(x, None, masks.key_padding(keep), False, pos, None, rules)
        for layer in self.layers:
            x = self.run_layer(layer, x, prepared)
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
        rules: Sequence[masks.Predicate] = (),
        causal: bool = True,
    ) -> Tensor:
        """Run the layers; returns [B, T, D].

        Args:
            x: embedded new tokens [B, T, D].
            pos: their position ids [B, T] or [1, T].
            keep: [B, S], True for a real token, cached ones included; None when all are real.
            memory: [B, M, D], for cross-attention.
            memory_keep: [B, M], True for a real memory token.
            cache: keys and values of earlier tokens, with the new tokens appended. The model advances it.
            rules: further predicates on which key a query may attend to.
            causal: hide the future; False when a rule decides about it.
        """
        x = self.embed(x, pos)
        first: Any = self.layers[0]
        prepared = first.self_attn.prepare(x, None, masks.key_padding(keep), causal, pos, cache, rules)
        cross = None if memory is None else first.cross_attn.prepare(x, memory, masks.key_padding(memory_keep))
        for index, layer in enumerate(self.layers):
            x = self.run_layer(layer, x, memory, prepared, cross, None if cache is None else cache.layer(index))
        return self.norm(x)
