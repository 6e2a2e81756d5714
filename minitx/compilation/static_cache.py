"""A cache of fixed shape.

Legend: B rows, G key-value heads, K d_head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.nn.cache import Cache, LayerCache
from minitx.nn.position_ids import ConsecutiveIds


class StaticCache(Cache):
    """A copy of a cache in tensors that keep their shape from token to token, for a compiled step.

    It takes one token at a time, keeps its rows, and has no window. The cache that it copies holds the prompt.
    """

    ids: Tensor  # [B, capacity]
    keep: Tensor  # [B, capacity]

    def __init__(self, cache: Cache, capacity: int) -> None:
        assert cache.ids is not None  # the prompt's
        for window in {layer.window for layer in cache.layers.values()} - {None}:
            raise ConfigError(f"a model with model.window {window} cannot be compiled for generation: it drops tokens")
        super().__init__(cache.memory, cache.memory_keep)
        self.ids = cache.ids
        self.keep = cache.keep if cache.keep is not None else torch.ones_like(cache.ids, dtype=torch.bool)
        # The index of the next token is a tensor: a number would be a constant of the compiled program.
        self.at = torch.tensor([cache.length], device=self.ids.device)
        self.layers = {index: StaticLayerCache(self.at, layer) for index, layer in cache.layers.items()}
        self.grow(capacity)

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
        padding = (0, capacity - self.ids.size(1))
        self.ids, self.keep, self.length = F.pad(self.ids, padding), F.pad(self.keep, padding), capacity
        for layer in self.layers.values():
            layer.buffers = [F.pad(part, (0, 0, 0, capacity - part.size(2))) for part in layer.buffers]


class StaticLayerCache(LayerCache):
    """Keys and values of one layer in buffers of a fixed size."""

    def __init__(self, at: Tensor, layer: LayerCache) -> None:
        super().__init__()
        self.at, self.memory = at, layer.memory
        self.buffers = [buffer[:, :, : layer.used] for buffer in layer.buffers]

    def extend(self, k: Tensor, v: Tensor, window: int | None = None) -> list[Tensor]:
        """Put one new key and value [B, G, 1, K] at its index; returns the whole buffers."""
        for buffer, new in zip(self.buffers, (k, v), strict=True):
            buffer.index_copy_(2, self.at, new)
        return self.buffers
