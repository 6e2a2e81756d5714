"""Stacks of layers: positions are added to the input, a norm is applied to the output.

Legend: B batch, T queries, S keys, M memory tokens, D d_model.
A stack prepares once per forward what layers with the same window have in common: angles, distances, mask and bias.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minitx.nn import masks
from minitx.nn.cache import Cache
from minitx.nn.norms import dropped
from minitx.nn.position_ids import ConsecutiveIds
from minitx.nn.positions import NoPositions


class Stack(nn.Module):
    """Layers in their order, lowest first.

    Args:
        layers: those with the same window have the same position scheme; only its weights may differ.
        position: the scheme that adds positions to the embeddings; if layers share it, their attentions hold it too.
        norm: applied to the result of pre-norm layers; None for post-norm ones.
        dropout: of the embeddings in training.
        position_ids: how a model numbers the tokens of this stack; consecutively by default.
        embedding_norm: applied to the embeddings after their positions are added (BERT); None for no norm.
    """

    causal: ClassVar[bool]
    """Whether the future is hidden; an argument of forward overrides it."""

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

    def forward(
        self,
        x: Tensor,
        pos: Tensor,
        keep: Tensor | None = None,
        memory: Tensor | None = None,
        memory_keep: Tensor | None = None,
        cache: Cache | None = None,
        rules: Sequence[masks.Predicate] = (),
        causal: bool | None = None,
    ) -> Tensor:
        """Run the layers on embedded tokens x [B, T, D], only the new ones if there is a cache; returns [B, T, D].

        Args:
            pos: position ids of the tokens, [B, T] or [1, T].
            keep: [B, S], True for a real token, cached ones included; None when all are real.
            memory: [B, M, D], for cross-attention.
            memory_keep: [B, M], True for a real memory token.
            cache: keys and values of earlier tokens, with the new tokens appended. The model advances it.
            rules: further predicates on which key a query may attend to.
            causal: hide the future; False if one of the rules does that.
        """
        x = dropped(self.embedding_norm(self.position.embed(x, pos)), self.dropout, self.training)
        layers: list[Any] = [*self.layers]
        causal = self.causal if causal is None else causal
        common = {"mask": masks.key_padding(keep), "causal": causal, "pos": pos, "cache": cache, "rules": rules}
        attentions = [layer.self_attn for layer in layers]
        # Schemes of several layers are prepared at once if prepare has no weights, see bias_per_layer.
        kinds = [(a.window, type(a.position) if a.position.bias_per_layer else a.position) for a in attentions]
        prepared = {kind: part.prepare(x, **common) for kind, part in dict(zip(kinds, attentions, strict=True)).items()}
        cross = None if memory is None else layers[0].cross_attn.prepare(x, memory, masks.key_padding(memory_keep))
        for index, layer in enumerate(layers):
            given = (x, memory, prepared[kinds[index]], cross, None if cache is None else cache.layers[index])
            if self.recompute and self.training and torch.is_grad_enabled():
                x = checkpoint(layer, *given, use_reentrant=False)
            else:
                x = layer(*given)
        return self.norm(x)


class EncoderStack(Stack):
    """Encoder layers: bidirectional, without a memory or a cache."""

    causal = False


class DecoderStack(Stack):
    """Decoder layers: causal, with or without a memory."""

    causal = True
