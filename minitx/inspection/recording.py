"""Catching attention weights on their way, from the same forward that trains.

Legend: B batch, T queries, S keys, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from minitx.nn.attention import AttentionFunction, MultiHeadAttention, scaled_dot_product_attention


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Within this block, every attention of the model computes its weights explicitly and leaves them here.

        with record_attention(model) as maps:
            model(ids)
        maps["decoder.layers.0.self_attn"]  # [B, H, T, S]

    Args:
        model: any module with MultiHeadAttention inside.

    Yields:
        A dict that each forward fills: module path to probabilities before dropout. A later call of the same
        module replaces the earlier one's.
    """
    maps: dict[str, Tensor] = {}
    attentions = {name: part for name, part in model.named_modules() if isinstance(part, MultiHeadAttention)}
    before = {name: part.attention for name, part in attentions.items()}
    try:
        for name, part in attentions.items():
            part.attention = Recorder(name, maps, part.attention)
        yield maps
    finally:
        for name, part in attentions.items():
            part.attention = before[name]


class Recorder:
    """Stands in for a module's attention function, and keeps the weights.

    Args:
        name: the module's path.
        maps: where to keep them.
        inner: what stood there before; another recorder gets the weights too.
    """

    def __init__(self, name: str, maps: dict[str, Tensor], inner: AttentionFunction) -> None:
        self.name, self.maps, self.inner = name, maps, inner

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Attend, with the explicit softmax."""
        out, weights = scaled_dot_product_attention(*args, **kwargs, return_weights=True)
        self.keep(weights.detach())
        return out

    def keep(self, weights: Tensor) -> None:
        """Keep the weights of a call, here and in every recorder around."""
        self.maps[self.name] = weights
        if isinstance(self.inner, Recorder):
            self.inner.keep(weights)
