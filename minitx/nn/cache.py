"""What a decoder remembers between steps, so that each token is computed once. For inference: it keeps no graph.

Legend: B batch, T new tokens, S all tokens so far, G key-value heads, K d_head, D d_model.
The cache is handed to the model's forward, which admits the new tokens, lets each layer extend its keys and values,
and advances once at the end. No module holds any of it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.nn.position_ids import ConsecutiveIds

FIRST_BLOCK = 32
"""Tokens for which room is made at first; the room then doubles, so that growing costs little per token."""


class Cache:
    """Keys and values of every decoder layer, and which tokens they belong to.

    Args:
        memory: encoder output [B, S, D] that cross-attention reads; None for a decoder alone.
        memory_keep: [B, S], True for a real source token; None when all are.
    """

    def __init__(self, memory: Tensor | None = None, memory_keep: Tensor | None = None) -> None:
        self.memory, self.memory_keep = memory, memory_keep
        self.length = 0  # tokens that every layer has seen
        self.ids: Tensor | None = None  # [B, S], the tokens themselves: some numberings look at them
        self.keep: Tensor | None = None  # [B, S]; None while every token has been real
        self.pos: Tensor | None = None  # [B or 1, S]
        self._layers: list[LayerCache] = []

    def layer(self, index: int) -> LayerCache:
        """The part that belongs to one layer."""
        while len(self._layers) <= index:
            self._layers.append(LayerCache(self))
        return self._layers[index]

    def admit(self, ids: Tensor, keep: Tensor | None, position_ids: ConsecutiveIds) -> Tensor:
        """Announce new tokens ids [B, T] with their keep; returns their position ids, [B, T] or [1, T]."""
        if keep is not None or self.keep is not None:
            rows = ids.size(0)
            before = self.keep if self.keep is not None else ids.new_ones(rows, self.length, dtype=torch.bool)
            new = keep if keep is not None else torch.ones_like(ids, dtype=torch.bool)
            self.keep = torch.cat((before, new), dim=1)
        self.ids = ids if self.ids is None else torch.cat((self.ids, ids), dim=1)
        self.pos = position_ids(self.ids, self.keep, fixed=True)
        return self.pos[:, self.length :]

    def advance(self, tokens: int) -> None:
        """Count tokens that every layer has now seen; the model calls it once a forward."""
        self.length += tokens

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch [N], in this order; a row may appear more than once."""
        for name in ("memory", "memory_keep", "ids", "keep", "pos"):
            tensor = getattr(self, name)
            if tensor is not None and (name != "pos" or tensor.size(0) > 1):  # one row of position ids may serve all
                setattr(self, name, tensor.index_select(0, rows))
        for layer in self._layers:
            layer.select(rows)

    def reorder(self, rows: Tensor, since: int) -> None:
        """Let each row [B] go on from another one, from which it differs from the token `since` on only.

        For beam search: what the beams of a prompt have in common, and their memory, stays where it is.
        """
        if self.ids is not None:
            self.ids = self.ids.index_select(0, rows)
        for layer in self._layers:
            layer.reorder(rows, since)


class LayerCache:
    """Keys and values of one layer: its own tokens', and the memory's."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._keys: Tensor | None = None  # [B, G, room, K]
        self._values: Tensor | None = None
        self._used = 0  # tokens in there
        self._forgotten = 0  # tokens that stood before them and that no window reaches any more
        self._memory: tuple[Tensor, Tensor] | None = None
        self._joined: tuple[Tensor, Tensor | None] | None = None

    def extend(self, k: Tensor, v: Tensor, pos: Tensor, window: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Add new keys and values [B, G, T, K].

        Returns:
            Keys and values so far [B, G, S, K] and their position ids [B or 1, S]; with a window, only those of the
            latest tokens that some new token may see.
        """
        new = k.size(2)
        if window is not None and self._keys is not None and self._used + new > self._keys.size(2):
            self._forget(max(0, self._used - window + 1))
        start, end = self._used, self._used + new
        self._keys, self._values = _room(self._keys, k, start, end), _room(self._values, v, start, end)
        self._keys[:, :, start:end], self._values[:, :, start:end] = k.detach(), v.detach()
        self._used = end
        first = 0 if window is None else max(0, end - new - window + 1)
        key_pos = self._cache.pos if self._cache.pos is not None else pos
        return self._keys[:, :, first:end], self._values[:, :, first:end], key_pos[:, first - end :]

    def _forget(self, tokens: int) -> None:
        """Move the latest tokens to the front, over the first ones."""
        if tokens and self._keys is not None and self._values is not None:
            left = self._used - tokens
            for buffer in (self._keys, self._values):
                buffer[:, :, :left] = buffer[:, :, tokens : self._used].clone()
            self._used, self._forgotten = left, self._forgotten + tokens

    def reorder(self, rows: Tensor, since: int) -> None:
        """See Cache.reorder."""
        since = max(since - self._forgotten, 0)
        if self._keys is not None and self._values is not None and since < self._used:
            for buffer in (self._keys, self._values):
                buffer[:, :, since : self._used] = buffer[:, :, since : self._used].index_select(0, rows)

    def once(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory, projected at the first call and remembered: the memory never changes."""
        if self._memory is None:
            self._memory = project()
        return self._memory

    def joined(self, join: Callable[[], tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of several maps as one, joined at the first call and remembered, as the keys that they made.

        While a cache lives, weights stand still.
        """
        if self._joined is None:
            weight, bias = join()
            self._joined = weight.detach(), None if bias is None else bias.detach()
        return self._joined

    def select(self, rows: Tensor) -> None:
        """See Cache.select."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys.index_select(0, rows), self._values.index_select(0, rows)
        if self._memory is not None:
            k, v = self._memory
            self._memory = k.index_select(0, rows), v.index_select(0, rows)


class StaticCache:
    """The same memory in tensors that keep their shape from token to token: what a compiled step needs.

    It takes one token at a time, and neither lets go of rows nor of what a window has passed.

    Args:
        cache: holds the prompt; its contents are copied.
        room: tokens that there will ever be.
    """

    def __init__(self, cache: Cache, room: int) -> None:
        assert cache.ids is not None  # a prompt has been read
        self.memory, self.memory_keep = cache.memory, cache.memory_keep
        keep = cache.keep if cache.keep is not None else torch.ones_like(cache.ids, dtype=torch.bool)
        left = (0, room - cache.length)
        self.ids, self.keep = F.pad(cache.ids, left), F.pad(keep, left)  # [B, room]; what is not there yet is not seen
        self.pos: Tensor | None = None  # [B, room]
        self.at = torch.tensor([cache.length], device=keep.device)  # where the next token goes: a tensor, not a shape
        self.length = room  # nobody may ask how much of it is used: that would be another program for each length
        self._layers = [StaticLayerCache(self, cache.layer(index), room) for index in range(len(cache._layers))]

    def layer(self, index: int) -> StaticLayerCache:
        """The part that belongs to one layer."""
        return self._layers[index]

    def admit(self, ids: Tensor, keep: Tensor | None, position_ids: ConsecutiveIds) -> Tensor:
        """Announce one new token ids [B, 1]; returns its position ids [B, 1]."""
        self.ids.index_copy_(1, self.at, ids)
        self.keep.index_fill_(1, self.at, True)
        self.pos = position_ids(self.ids, self.keep, fixed=True)
        return self.pos.index_select(1, self.at)

    def advance(self, tokens: int) -> None:
        """See Cache.advance."""
        self.at.add_(tokens)

    def grow(self, room: int) -> None:
        """Make room for more tokens, between two steps."""
        left = (0, room - self.length)
        self.ids, self.keep, self.length = F.pad(self.ids, left), F.pad(self.keep, left), room
        for layer in self._layers:
            layer.grow(room)


class StaticLayerCache:
    """The part of a StaticCache that belongs to one layer, made from a LayerCache."""

    def __init__(self, cache: StaticCache, layer: LayerCache, room: int) -> None:
        assert layer._keys is not None
        assert layer._values is not None
        self._cache, self._memory, self._joined = cache, layer._memory, layer._joined
        self._keys, self._values = layer._keys[:, :, : layer._used], layer._values[:, :, : layer._used]
        self.grow(room)

    def grow(self, room: int) -> None:
        """See StaticCache.grow."""
        left = (0, 0, 0, room - self._keys.size(2))
        self._keys, self._values = F.pad(self._keys, left), F.pad(self._values, left)  # [B, G, room, K]

    def extend(self, k: Tensor, v: Tensor, pos: Tensor, window: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Put one new key and value [B, G, 1, K] in their place; returns the whole room, and its position ids."""
        assert self._cache.pos is not None  # admit has numbered them
        self._keys.index_copy_(2, self._cache.at, k)
        self._values.index_copy_(2, self._cache.at, v)
        return self._keys, self._values, self._cache.pos

    def once(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory."""
        assert self._memory is not None
        return self._memory

    def joined(self, join: Callable[[], tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of several maps as one."""
        assert self._joined is not None
        return self._joined


def _room(buffer: Tensor | None, new: Tensor, used: int, needed: int) -> Tensor:
    """The buffer, or a larger one with the same beginning, that holds at least `needed` tokens."""
    if buffer is not None and buffer.size(2) >= needed:
        return buffer
    room = FIRST_BLOCK if buffer is None else buffer.size(2)
    while room < needed:
        room *= 2
    larger = new.new_empty(new.size(0), new.size(1), room, new.size(3))
    if buffer is not None:
        larger[:, :, :used] = buffer[:, :, :used]
    return larger
