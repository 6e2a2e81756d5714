"""Caches of fixed shape, for a compiled step: copies of others in tensors that keep their shape from token to token.

Legend: B rows, W beams, G key-value heads, K d_head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.nn.cache import BeamCache, Cache, LayerCache, Visible
from minitx.nn.position_ids import ConsecutiveIds


class StaticCache(Cache):
    """A copy of a cache with the prompt, for one token at a time, with the same rows in all steps and no window."""

    ids: Tensor  # [B, capacity]
    keep: Tensor  # [B, capacity]

    def __init__(self, cache: Cache, capacity: int, tokens: int = 1) -> None:
        assert cache.ids is not None  # the prompt's
        for window in {layer.window for layer in cache.layers.values()} - {None}:
            raise ConfigError(f"a model with model.window {window} cannot be compiled for generation: it drops tokens")
        super().__init__(cache.memory, cache.memory_keep)
        self.source = cache
        self.ids = cache.ids
        self.keep = cache.keep if cache.keep is not None else torch.ones_like(cache.ids, dtype=torch.bool)
        # The indices of new tokens are a tensor: a number would be a constant of the compiled program.
        self.at = torch.arange(cache.length, cache.length + tokens, device=self.ids.device)
        self.layers = {index: StaticLayerCache(self.at, layer) for index, layer in cache.layers.items()}
        self.grow(capacity)

    def before_step(self, ids: Tensor, position_ids: ConsecutiveIds) -> None:
        """Do for new tokens what is not compiled: count them."""
        self.source.advance(ids.size(1))

    def append(self, ids: Tensor, keep: Tensor | None, position_ids: ConsecutiveIds) -> Tensor:
        """Append one token ids [B, 1]; returns its position ids [B, 1]."""
        self.ids.index_copy_(1, self.at, ids)
        self.keep.index_fill_(1, self.at, True)
        self.pos = position_ids(self.ids, self.keep, fixed=True)
        return self.pos.index_select(1, self.at)

    def advance(self, tokens: int) -> None:
        """Move the index of the next token."""
        self.at.add_(tokens)

    def grow(self, capacity: int) -> None:
        """Enlarge every buffer, between two steps."""
        self.length = capacity
        self.ids, self.keep = (F.pad(part, (0, capacity - part.size(-1))) for part in (self.ids, self.keep))
        for layer in self.layers.values():
            layer.buffers = [F.pad(part, (0, 0, 0, capacity - part.size(2))) for part in layer.buffers]


class StaticBeamCache(StaticCache):
    """Keys and values of beams, shared with the cache that is copied: it has the positions and the tokens of beams."""

    source: BeamCache

    def __init__(self, cache: BeamCache, capacity: int) -> None:
        super().__init__(cache, capacity, cache.seen.size(1))
        cache.layers = self.layers

    def before_step(self, ids: Tensor, position_ids: ConsecutiveIds) -> None:
        """Append tokens ids [B, W] to the beams, and copy what a step reads of them."""
        self.at.copy_(torch.arange(self.source.length, self.source.length + ids.size(1), device=ids.device))
        self.new = self.source.append(ids, None, position_ids).contiguous()
        padding = (0, self.length - self.source.pos.size(1))
        self.pos, self.seen = F.pad(self.source.pos, padding), F.pad(self.source.seen, padding)
        super().before_step(ids, position_ids)

    def append(self, ids: Tensor, keep: Tensor | None, position_ids: ConsecutiveIds) -> Tensor:
        """Position ids [B, W] of the new tokens."""
        return self.new

    def visible(self, tokens: int, mask: Tensor | None, causal: bool, window: int | None) -> Visible:
        """As for the beams, with empty capacity."""
        return self.pos, self.seen[:, None], False, None

    def advance(self, tokens: int) -> None:
        """Nothing: the beams are advanced before the step."""


class StaticLayerCache(LayerCache):
    """Keys and values of one layer in buffers of a fixed size."""

    def __init__(self, at: Tensor, layer: LayerCache) -> None:
        super().__init__()
        self.at, self.memory = at, layer.memory
        self.buffers = [buffer[:, :, : layer.used] for buffer in layer.buffers]

    def extend(self, k: Tensor, v: Tensor, window: int | None = None) -> list[Tensor]:
        """Put new keys and values [B, G, 1 or W, K] at their indices; returns the whole buffers."""
        for buffer, new in zip(self.buffers, (k, v), strict=True):
            buffer.index_copy_(2, self.at, new)
        return self.buffers
