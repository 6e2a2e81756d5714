"""Keys and values of tokens that were read before, so that decoding computes each token once. For inference only.

Legend: B batch, T new tokens, S all tokens so far, G key-value heads, K d_head, D d_model.
The model appends the new tokens to the cache, each layer extends its keys and values, and the model advances the cache
once per call. Modules hold no state of a generation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.nn.position_ids import ConsecutiveIds

FIRST_CAPACITY = 32
"""Tokens that a buffer holds at first. It doubles when full, so that growing costs little per token."""


class Cache:
    """Keys and values of every decoder layer, and the tokens that they belong to.

    Args:
        memory: encoder output [B, S, D] that cross-attention reads; None for a decoder alone.
        memory_keep: [B, S], True for a real source token; None when all are.
    """

    def __init__(self, memory: Tensor | None = None, memory_keep: Tensor | None = None) -> None:
        self.memory, self.memory_keep = memory, memory_keep
        self.length = 0  # tokens whose keys and values every layer holds
        self.ids: Tensor | None = None  # [B, S]; some position ids depend on the tokens
        self.keep: Tensor | None = None  # [B, S]; None while every token is real
        self.pos: Tensor | None = None  # [B or 1, S]
        self._layers: list[LayerCache] = []

    def layer(self, index: int) -> LayerCache:
        """The keys and values of one layer."""
        while len(self._layers) <= index:
            self._layers.append(LayerCache())
        return self._layers[index]

    def append(self, ids: Tensor, keep: Tensor | None, position_ids: ConsecutiveIds) -> Tensor:
        """Append new tokens ids [B, T] with their keep; returns their position ids, [B, T] or [1, T]."""
        if keep is not None or self.keep is not None:
            rows = ids.size(0)
            before = self.keep if self.keep is not None else ids.new_ones(rows, self.length, dtype=torch.bool)
            new = keep if keep is not None else torch.ones_like(ids, dtype=torch.bool)
            self.keep = torch.cat((before, new), dim=1)
        self.ids = ids if self.ids is None else torch.cat((self.ids, ids), dim=1)
        self.pos = position_ids(self.ids, self.keep, fixed=True)
        return self.pos[:, self.length :]

    def key_positions(self, tokens: int, window: int | None) -> Tensor:
        """Position ids [B or 1, S] of the keys that a layer's extend returns with `tokens` new ones."""
        assert self.pos is not None, "append comes first"
        return self.pos if window is None else self.pos[:, -(tokens + window - 1) :]

    def advance(self, tokens: int) -> None:
        """Count `tokens` new tokens as read by every layer. The model calls it once per forward."""
        self.length += tokens

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch [N], in this order; a row may appear more than once."""
        for name in ("memory", "memory_keep", "ids", "keep"):  # append computes pos anew
            if (tensor := getattr(self, name)) is not None:
                setattr(self, name, tensor.index_select(0, rows))
        for layer in self._layers:
            layer.select(rows)

    def reorder(self, rows: Tensor, since: int) -> None:
        """Replace each row [B] by another one that differs from it only from token `since` on.

        For beam search: the tokens that the beams of a prompt have in common, and their memory, are not copied.
        """
        if self.ids is not None:
            self.ids = self.ids.index_select(0, rows)
        for layer in self._layers:
            layer.reorder(rows, since)


class LayerCache:
    """Keys and values of one layer: those of the tokens, and those of the memory."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None  # [B, G, capacity, K]
        self.values: Tensor | None = None
        self.used = 0  # tokens in the buffers
        self.dropped = 0  # tokens before them, which no window reaches any more
        self.memory: tuple[Tensor, Tensor] | None = None  # keys and values of the memory

    def extend(self, k: Tensor, v: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
        """Add new keys and values [B, G, T, K]; returns all so far, [B, G, S, K].

        With a window: only those of the latest tokens that some new token may attend to.
        """
        new = k.size(2)
        if window is not None and self.keys is not None and self.used + new > self.keys.size(2):
            self._drop(max(0, self.used - window + 1))
        start, end = self.used, self.used + new
        self.keys, self.values = _enlarged(self.keys, k, start, end), _enlarged(self.values, v, start, end)
        with torch.no_grad():
            self.keys.narrow(2, start, new).copy_(k)
            self.values.narrow(2, start, new).copy_(v)
        self.used = end
        first = 0 if window is None else max(0, start - window + 1)
        return self.keys.narrow(2, first, end - first), self.values.narrow(2, first, end - first)

    def _drop(self, tokens: int) -> None:
        """Drop the first tokens: move the others to the front of the buffers."""
        if tokens and self.keys is not None and self.values is not None:
            left = self.used - tokens
            for buffer in (self.keys, self.values):
                buffer[:, :, :left] = buffer[:, :, tokens : self.used].clone()
            self.used, self.dropped = left, self.dropped + tokens

    def reorder(self, rows: Tensor, since: int) -> None:
        """See Cache.reorder."""
        since = max(since - self.dropped, 0)
        if self.keys is not None and self.values is not None and since < self.used:
            for buffer in (self.keys, self.values):
                buffer[:, :, since : self.used] = buffer[:, :, since : self.used].index_select(0, rows)

    def cross_kv(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory; `project` computes them in the first call."""
        if self.memory is None:
            self.memory = project()
        return self.memory

    def select(self, rows: Tensor) -> None:
        """See Cache.select."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
        if self.memory is not None:
            k, v = self.memory
            self.memory = k.index_select(0, rows), v.index_select(0, rows)


class StaticCache:
    """A copy of a cache in tensors that keep their shape from token to token, for a compiled step.

    It takes one token at a time, drops no rows, and has no window.

    Args:
        cache: holds the prompt.
        capacity: tokens that fit in.
    """

    def __init__(self, cache: Cache, capacity: int) -> None:
        assert cache.ids is not None  # the prompt's
        self.memory, self.memory_keep = cache.memory, cache.memory_keep
        self.ids = cache.ids  # [B, capacity]
        self.pos: Tensor | None = None
        self.keep = cache.keep if cache.keep is not None else torch.ones_like(cache.ids, dtype=torch.bool)
        self.at = torch.tensor([cache.length], device=self.ids.device)  # index of the next token, as a tensor: it must
        self.length = capacity  # not be a number in the compiled program, and this one stays the same
        self._layers = [StaticLayerCache(self.at, cache.layer(index)) for index in range(len(cache._layers))]
        self.grow(capacity)

    def layer(self, index: int) -> StaticLayerCache:
        """The keys and values of one layer."""
        return self._layers[index]

    def append(self, ids: Tensor, keep: Tensor | None, position_ids: ConsecutiveIds) -> Tensor:
        """Append one token ids [B, 1]; returns its position ids [B, 1]."""
        self.ids.index_copy_(1, self.at, ids)
        self.keep.index_fill_(1, self.at, True)
        self.pos = position_ids(self.ids, self.keep, fixed=True)
        return self.pos.index_select(1, self.at)

    def key_positions(self, tokens: int, window: int | None) -> Tensor:
        """Position ids [B, capacity]; `keep` hides the places that are still empty."""
        assert self.pos is not None, "append comes first"
        return self.pos

    def advance(self, tokens: int) -> None:
        """See Cache.advance."""
        self.at.add_(tokens)

    def grow(self, capacity: int) -> None:
        """Enlarge every buffer, between two steps."""
        padding = (0, capacity - self.ids.size(1))
        self.ids, self.keep, self.length = F.pad(self.ids, padding), F.pad(self.keep, padding), capacity
        for layer in self._layers:
            layer.grow(capacity)


class StaticLayerCache:
    """Keys and values of one layer in buffers of a fixed size."""

    def __init__(self, at: Tensor, layer: LayerCache) -> None:
        assert layer.keys is not None
        assert layer.values is not None
        self.at, self.memory = at, layer.memory
        self.keys, self.values = layer.keys[:, :, : layer.used], layer.values[:, :, : layer.used]

    def grow(self, capacity: int) -> None:
        """See StaticCache.grow."""
        padding = (0, 0, 0, capacity - self.keys.size(2))
        self.keys, self.values = F.pad(self.keys, padding), F.pad(self.values, padding)  # [B, G, capacity, K]

    def extend(self, k: Tensor, v: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
        """Put one new key and value [B, G, 1, K] at its index; returns the whole buffers."""
        self.keys.index_copy_(2, self.at, k)
        self.values.index_copy_(2, self.at, v)
        return self.keys, self.values

    def cross_kv(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory."""
        assert self.memory is not None
        return self.memory


def _enlarged(buffer: Tensor | None, new: Tensor, used: int, needed: int) -> Tensor:
    """The buffer, or a larger one with the same beginning, that holds at least `needed` tokens."""
    if buffer is not None and buffer.size(2) >= needed:
        return buffer
    capacity = FIRST_CAPACITY if buffer is None else buffer.size(2)
    while capacity < needed:
        capacity *= 2
    larger = new.new_empty(new.size(0), new.size(1), capacity, new.size(3))
    if buffer is not None:
        larger[:, :, :used] = buffer[:, :, :used]
    return larger
