"""Keys and values of earlier tokens, so that decoding computes each token once. For inference only.

Legend: B batch, T new tokens, S all tokens so far, G key-value heads, K d_head, D d_model, W beams.
The model appends the new tokens to the cache, each layer extends its keys and values, and the model advances the cache
once per call. Modules hold no state of a generation.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.nn.position_ids import ConsecutiveIds

FIRST_CAPACITY = 32  # tokens that a buffer holds at first
NEXT_CAPACITY = {"cuda": 256}
"""By device: minimum capacity in tokens of a buffer without a window once it has grown; growing ends a CUDA graph."""
MAX_DEAD_TOKENS = 32  # minimum number of stored tokens in no beam for which dropping them saves time
Visible = tuple[Tensor, Tensor | None, bool, int | None]
"""Position ids [B or 1, S] of a layer's keys, and what limits attention to them: a mask, causality, a window."""


class Cache:
    """Keys and values of every decoder layer, and the tokens that they belong to.

    memory [B, S, D] is what cross-attention reads, None for a decoder alone; memory_keep [B, S]: True for real tokens.
    """

    parts: ClassVar[tuple[str, ...]] = ("ids", "keep")
    """Attributes that each step replaces."""

    def __init__(self, memory: Tensor | None = None, memory_keep: Tensor | None = None) -> None:
        self.memory, self.memory_keep = memory, memory_keep
        self.length = 0  # tokens whose keys and values every layer holds
        self.before: Tensor | None = None  # [B, 1], number of real tokens of each text before its first one here
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

    def visible(self, tokens: int, mask: Tensor | None, causal: bool, window: int | None) -> Visible:
        """Cut position ids and mask to the keys that a layer's extend returns for a number of new tokens."""
        pos = self.pos if window is None else self.pos[:, -(tokens + window - 1) :]
        return pos, None if mask is None else mask[..., -pos.size(1) :], causal, window

    def advance(self, tokens: int) -> None:
        """Count `tokens` new tokens as read by every layer. The model calls it once per forward."""
        self.length += tokens

    def branch(self, beams: int) -> "BeamCache":
        """Continue each row by several beams; this cache is not used afterwards."""
        return BeamCache(self, beams)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch [N], in this order; a row may appear more than once."""
        for name in ("memory", "memory_keep", "before", *self.parts):  # append recomputes pos
            if (tensor := getattr(self, name)) is not None:
                setattr(self, name, tensor.index_select(0, rows))
        for layer in self.layers.values():
            layer.buffers = [buffer.index_select(0, rows) for buffer in layer.buffers]
            layer.memory = [part.index_select(0, rows) for part in layer.memory]


class BeamCache(Cache):
    """The beams of each prompt: a step reads one token for each of them, as the queries of one row.

    A token that beams have in common is stored once, so that attention reads it once. S counts the stored tokens of a
    prompt, in any order; T counts the tokens of one beam's text.
    """

    parts = ("ids", "keep", "seen", "pos", "places")
    ids: Tensor  # [B, W, T]; so is keep

    def __init__(self, cache: Cache, beams: int) -> None:
        assert cache.ids is not None  # the prompt's
        super().__init__(cache.memory, cache.memory_keep)
        self.length, self.before = cache.length, cache.before
        self.ids = cache.ids[:, None].expand(-1, beams, -1)
        self.keep = None if cache.keep is None else cache.keep[:, None].expand(-1, beams, -1)
        self.seen = torch.ones_like(self.ids, dtype=torch.bool) if self.keep is None else self.keep  # [B, W, S]
        self.pos = cache.pos.expand(len(self.ids), -1)  # [B, S]
        self.places = torch.arange(self.length, device=self.pos.device).expand_as(self.pos)  # [B, S], indices in a text
        self.layers = cache.layers
        for layer in self.layers.values():
            layer.ordered = False

    def append(self, ids: Tensor, keep: Tensor | None, position_ids: ConsecutiveIds) -> Tensor:
        """Append one token to each beam, ids [B, W]; returns their position ids [B, W]."""
        prompts, beams = ids.shape
        self.places = F.pad(self.places, (0, beams), value=self.ids.size(2))
        self.ids = torch.cat((self.ids, ids[..., None]), dim=2)
        self.keep = None if self.keep is None else F.pad(self.keep, (0, 1), value=True)
        texts, keep = self.ids.flatten(0, 1), None if self.keep is None else self.keep.flatten(0, 1)
        pos = position_ids(texts, keep, fixed=True)[:, -1:].expand(len(texts), 1).reshape(prompts, beams)
        own = torch.eye(beams, dtype=torch.bool, device=ids.device).expand(prompts, -1, -1)
        self.pos, self.seen = torch.cat((self.pos, pos), dim=1), torch.cat((self.seen, own), dim=2)
        return pos

    def visible(self, tokens: int, mask: Tensor | None, causal: bool, window: int | None) -> Visible:
        """All position ids [B, S], and a mask [B, 1, W, S] of each beam's own tokens."""
        mask = self.seen[:, None]
        if window is not None:
            mask = mask & (self.places > self.ids.size(2) - 1 - window)[:, None, None]
        return self.pos, mask, False, None

    def reorder(self, parents: Tensor) -> None:
        """Let each beam continue the text of a beam of the same prompt; parents [B, W]."""
        self.ids, self.seen = (part.take_along_dim(parents[..., None], dim=1) for part in (self.ids, self.seen))

    def alive(self) -> Tensor:
        """Number of stored tokens that are in some beam, for the prompt with the most."""
        return self.seen.any(dim=1).sum(dim=1).max()

    def compact(self, count: int) -> None:
        """Drop stored tokens that no beam has any more, if they are many; count is the result of alive."""
        if self.length - count < MAX_DEAD_TOKENS or 4 * count > 3 * self.length:
            return
        # Of a prompt with fewer, some that no beam has are kept.
        index = self.seen.any(dim=1).long().argsort(dim=1, descending=True, stable=True)[:, :count]
        self.pos, self.places = self.pos.gather(1, index), self.places.gather(1, index)
        self.seen = self.seen.take_along_dim(index[:, None], dim=2)
        self.length = count
        for layer in self.layers.values():
            layer.compact(index)


class LayerCache:
    """Keys and values of one layer: those of the tokens, and those of the memory."""

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []  # keys and values, each [B, G, capacity, K]; empty before the first token
        self.used = 0  # tokens in the buffers
        self.window: int | None = None  # of the latest call of extend
        self.ordered = True  # whether the tokens are in the order of one text; otherwise a window drops none
        self.memory: Sequence[Tensor] = ()  # keys and values of the memory, once cross-attention has computed them

    def extend(self, k: Tensor, v: Tensor, window: int | None = None) -> list[Tensor]:
        """Add new keys and values [B, G, T, K]; returns all keys and all values so far, each [B, G, S, K].

        With a window: only those of the latest tokens that some new token may attend to.
        """
        tokens, self.window = k.size(2), window if self.ordered else None
        if not self.buffers or self.used + tokens > self.buffers[0].size(2):
            self.free_capacity(k, v)
        start, self.used = self.used, self.used + tokens
        with torch.no_grad():
            for buffer, new in zip(self.buffers, (k, v), strict=True):
                buffer.narrow(2, start, tokens).copy_(new)
        first = 0 if self.window is None else max(0, start - self.window + 1)
        return [buffer.narrow(2, first, self.used - first) for buffer in self.buffers]

    def free_capacity(self, k: Tensor, v: Tensor) -> None:
        """Drop the tokens before the window; if k and v still do not fit, copy the others to larger buffers."""
        needed, window = self.used + k.size(2), self.window if self.ordered else None
        if window is not None and (tokens := max(0, self.used - window + 1)):
            for buffer in self.buffers:
                buffer[:, :, : self.used - tokens] = buffer[:, :, tokens : self.used].clone()
            self.used -= tokens
            needed = self.used + max(k.size(2), window)  # capacity for another window: tokens are moved rarely
        if self.buffers and needed <= self.buffers[0].size(2):
            return
        capacity = self._capacity(needed, k.device.type, window)
        larger = [new.new_empty(*new.shape[:2], capacity, new.size(3)) for new in (k, v)]
        for new, old in zip(larger, self.buffers or larger, strict=True):
            new[:, :, : self.used] = old[:, :, : self.used]
            new[:, :, self.used :].zero_()  # attention may read a whole buffer: NaN would make its sums NaN
        self.buffers = larger

    def _capacity(self, needed: int, device: str, window: int | None) -> int:
        """Capacity of a buffer for at least `needed` tokens, and for more, so that it grows rarely."""
        if self.ordered and device not in NEXT_CAPACITY:  # a small reserve: attention may read it too
            capacity = -(-(needed + needed // 4) // FIRST_CAPACITY) * FIRST_CAPACITY
        else:
            least = NEXT_CAPACITY.get(device, 0) if needed > FIRST_CAPACITY and window is None else FIRST_CAPACITY
            capacity = 1 << (max(needed, least) - 1).bit_length()
        return capacity if window is None else max(needed, min(capacity, max(2 * window, FIRST_CAPACITY)))

    def compact(self, index: Tensor) -> None:
        """Keep the tokens at these indices [B, S] of each row."""
        self.used = index.size(1)
        rows, heads, capacity, _ = self.buffers[0].shape
        first = capacity * torch.arange(rows * heads, device=index.device).view(rows, heads, 1)
        index = (first + index[:, None]).flatten()
        for buffer in self.buffers:
            buffer[:, :, : self.used] = buffer.flatten(0, 2).index_select(0, index).view(rows, heads, self.used, -1)
