"""Keys and values of earlier tokens, so that decoding computes each token once. For inference only.

Legend: B batch, T new tokens, S all tokens so far, G key-value heads, K d_head, D d_model.
The model appends the new tokens to the cache, each layer extends its keys and values, and the model advances the cache
once per call. Modules hold no state of a generation.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minitx.nn.position_ids import ConsecutiveIds

FIRST_CAPACITY = 32
"""Tokens that a buffer holds at first. It doubles when full, so that growing costs little per token."""


class Cache:
    """Keys and values of every decoder layer, and the tokens that they belong to.

    memory [B, S, D] is the encoder output that cross-attention reads, None for a decoder alone; memory_keep [B, S] is
    True for a real source token.
    """

    def __init__(self, memory: Tensor | None = None, memory_keep: Tensor | None = None) -> None:
        self.memory, self.memory_keep = memory, memory_keep
        self.length = 0  # tokens whose keys and values every layer holds
        self.ids: Tensor | None = None  # [B, S]; some position ids depend on the tokens
        self.keep: Tensor | None = None  # [B, S]; None while every token is real
        self.pos: Tensor  # [B or 1, S]; set by append
        self.layers: dict[int, LayerCache] = defaultdict(LayerCache)  # by index

    def append(self, ids: Tensor, keep: Tensor | None, position_ids: ConsecutiveIds) -> Tensor:
        """Append new tokens ids [B, T] with their keep; returns their position ids, [B, T] or [1, T]."""
        if keep is not None or self.keep is not None:
            before = self.keep if self.keep is not None else ids.new_ones(ids.size(0), self.length, dtype=torch.bool)
            new = keep if keep is not None else torch.ones_like(ids, dtype=torch.bool)
            self.keep = torch.cat((before, new), dim=1)
        self.ids = ids if self.ids is None else torch.cat((self.ids, ids), dim=1)
        self.pos = position_ids(self.ids, self.keep, fixed=True)
        return self.pos[:, self.length :]

    def key_positions(self, tokens: int, window: int | None) -> Tensor:
        """Position ids [B or 1, S] of the keys that a layer's extend returns with `tokens` new ones."""
        return self.pos if window is None else self.pos[:, -(tokens + window - 1) :]

    def advance(self, tokens: int) -> None:
        """Count `tokens` new tokens as read by every layer. The model calls it once per forward."""
        self.length += tokens

    def steps_alike(self) -> tuple[int, tuple[Any, ...]]:
        """Count the next tokens that the layers take by one rule, one token a step; and tell this rule from others."""
        ahead, rule = [], [self.keep is None, self.layers[0].buffers[0].shape[:2], self.layers[0].buffers[0].dtype]
        for window, layer in {layer.window: layer for layer in self.layers.values()}.items():
            edges = [window + near for near in (-1, 0, 1)] if window is not None else []
            ahead += [edge - layer.used for edge in (layer.buffers[0].size(2), *edges) if edge >= layer.used]
            rule += [layer.dropped, *(edge <= layer.used for edge in edges)]
        return min(ahead), tuple(rule)

    def tensors(self) -> list[Tensor | None]:
        """The tensors that a step of one token reads or changes in place."""
        layers = [part for layer in self.layers.values() for part in (*layer.buffers, *layer.memory)]
        return [self.memory, self.memory_keep, *layers]

    def follow(self, ids: Tensor, keep: Tensor | None, pos: Tensor) -> None:
        """Take over the outcome of a step of one token that has changed the tensors without this object."""
        self.ids, self.keep, self.pos = ids, keep, pos
        self.advance(1)
        for layer in self.layers.values():
            layer.used += 1

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch [N], in this order; a row may appear more than once."""
        for name in ("memory", "memory_keep", "ids", "keep"):  # append recomputes pos
            if (tensor := getattr(self, name)) is not None:
                setattr(self, name, tensor.index_select(0, rows))
        for layer in self.layers.values():
            layer.buffers = [buffer.index_select(0, rows) for buffer in layer.buffers]
            layer.memory = [part.index_select(0, rows) for part in layer.memory]

    def reorder(self, rows: Tensor, since: int) -> None:
        """Replace each row [B] by another one that differs from it only from token `since` on.

        For beam search: the tokens that the beams of a prompt have in common, and their memory, are not copied.
        """
        if self.ids is not None:
            self.ids = self.ids.index_select(0, rows)
        for layer in self.layers.values():
            layer.reorder(rows, since)


class LayerCache:
    """Keys and values of one layer: those of the tokens, and those of the memory."""

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []  # keys and values, each [B, G, capacity, K]; empty before the first token
        self.used = 0  # tokens in the buffers
        self.dropped = 0  # tokens before them, which no window reaches any more
        self.window: int | None = None  # of the latest call of extend
        self.memory: Sequence[Tensor] = ()  # keys and values of the memory, once cross_kv has computed them

    def extend(self, k: Tensor, v: Tensor, window: int | None = None) -> list[Tensor]:
        """Add new keys and values [B, G, T, K]; returns all keys and all values so far, each [B, G, S, K].

        With a window: only those of the latest tokens that some new token may attend to.
        """
        tokens, self.window = k.size(2), window
        if not self.buffers or self.used + tokens > self.buffers[0].size(2):
            self._free_capacity(k, v, window)
        start, self.used = self.used, self.used + tokens
        with torch.no_grad():
            for buffer, new in zip(self.buffers, (k, v), strict=True):
                buffer.narrow(2, start, tokens).copy_(new)
        first = 0 if window is None else max(0, start - window + 1)
        return [buffer.narrow(2, first, self.used - first) for buffer in self.buffers]

    def _free_capacity(self, k: Tensor, v: Tensor, window: int | None) -> None:
        """Drop the tokens before the window; where that is not enough, copy the others to larger buffers."""
        if window is not None and (tokens := max(0, self.used - window + 1)):
            for buffer in self.buffers:
                buffer[:, :, : self.used - tokens] = buffer[:, :, tokens : self.used].clone()
            self.used, self.dropped = self.used - tokens, self.dropped + tokens
        capacity = present = self.buffers[0].size(2) if self.buffers else 0
        while capacity < self.used + k.size(2):
            capacity = max(2 * capacity, FIRST_CAPACITY)
        if capacity > present:
            larger = [new.new_empty(*new.shape[:2], capacity, new.size(3)) for new in (k, v)]
            for new, old in zip(larger, self.buffers, strict=False):  # at first there is no old one
                new[:, :, : self.used] = old[:, :, : self.used]
            self.buffers = larger

    def reorder(self, rows: Tensor, since: int) -> None:
        """Reorder the rows of the buffers; see Cache.reorder."""
        since = max(since - self.dropped, 0)
        for buffer in self.buffers if since < self.used else ():
            buffer[:, :, since : self.used] = buffer[:, :, since : self.used].index_select(0, rows)

    def cross_kv(self, project: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Keys and values of the memory; `project` computes them in the first call."""
        if not self.memory:
            self.memory = project()
        return self.memory
