"""Attention of a decoding step as two batched products over whole buffers of keys and values.

Reading keys and values takes most of the time of a step of a large batch. torch's fused kernel reads only the tokens,
with a gap after each row and head: the unused capacity of the buffers. A CPU reads a buffer that exceeds its caches
more than twice as fast without gaps, so reading the capacity too may take less time. For several beams, or on several
threads, batched products may be faster for other reasons. Which one is faster depends on the CPU, the number of threads
and the sizes, and is measured.

Legend: B rows, W queries of a row, S tokens, H heads, G key-value heads, K d_head.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_NUMBERS = 2**14
"""Numbers in the smallest buffer that is measured. Reading a smaller one takes less time than the calls."""
RACE_SECONDS = 0.003
"""Minimum duration of the race for one size."""


def batched_attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, used: int | None = None) -> Tensor:
    """Compute torch's scaled_dot_product_attention over the first S tokens of buffers, up to rounding.

    Args:
        q: [B, H, W, K].
        keys: [B, G, capacity, K], like values; unused capacity must be finite.
        mask: float, broadcastable to [B, H, W, S], added to the scores. Every query has at least one key.
        used: S; None: all.
    """
    rows, heads, queries, width = q.shape
    groups, capacity = rows * keys.size(1), keys.size(2)
    empty = 0 if used is None else capacity - used
    if mask is None:
        bias = _hiding(capacity, q.dtype)[empty : empty + capacity]
    else:
        bias = F.pad(mask, (0, empty), value=-math.inf).expand(rows, heads, queries, -1).reshape(groups, -1, capacity)
    q = q.reshape(groups, -1, width)
    scores = torch.baddbmm(bias, q, keys.reshape(groups, capacity, width).transpose(1, 2), alpha=1 / math.sqrt(width))
    return torch.bmm(scores.softmax(dim=-1), values.reshape(groups, capacity, -1)).view(rows, heads, queries, -1)


@functools.lru_cache(maxsize=8)
def _hiding(capacity: int, dtype: torch.dtype) -> Tensor:
    """Zeros for the tokens of a buffer, then -inf for as many places: a slice of it hides unused capacity."""
    bias = torch.zeros(2 * capacity, dtype=dtype, device="cpu")
    bias[capacity:] = -math.inf
    return bias


class AttentionChoices:
    """Choose between the fused kernel and batched products, by size."""

    def __init__(self) -> None:
        self._is_faster: dict[tuple[Any, ...], bool] = {}  # by sizes; those that vary are rounded up to a power of two

    def choose(self, cache: Any, heads: int, queries: int) -> tuple[bool, bool]:
        """Whether batched products are faster for the tokens, and for the memory: a step has H heads and W queries."""
        layers = [*cache.layers.values()]
        unlimited = [layer for layer in layers if layer.window is None or not layer.ordered]
        used, padded = max(layer.used for layer in layers) + queries, cache.keep is not None or queries > 1
        own = self._choose([layer.buffers for layer in unlimited], used, heads, queries, padded)
        memory, keep = [layer.memory for layer in layers if layer.memory], cache.memory_keep
        if keep is not None and keep.is_cpu and not keep.any(dim=1).all():  # a source of padding alone
            memory = []
        return own, self._choose(memory, None, heads, queries, keep is not None)

    def _choose(
        self, layers: Sequence[Sequence[Tensor]], used: int | None, heads: int, queries: int, masked: bool
    ) -> bool:
        if not layers:
            return False
        keys, _ = layers[0]
        layers = [each for each in layers if each[0].shape == keys.shape]  # a prompt with a window may need less
        if not keys.is_cpu or keys.dtype != torch.float32 or keys.numel() < MIN_NUMBERS:
            return False
        rows, groups, capacity, width = keys.shape
        rounded = [1 << (size - 1).bit_length() for size in (rows, capacity)]
        sizes = (*rounded, groups, width, heads, queries, masked, used is None, len(layers))
        if sizes not in self._is_faster:
            self._is_faster[sizes] = is_faster(sizes, layers, used, heads, queries, masked)
        return self._is_faster[sizes]


def is_faster(
    sizes: Sequence[Any], layers: Sequence[Sequence[Tensor]], used: int | None, heads: int, queries: int, masked: bool
) -> bool:
    """Whether batched products are faster, by a measurement that processes share.

    All layers are read in turn, as in a step: a single one would remain in the caches of the CPU.
    """
    from minitx.hardware.races import decide, race  # an extra

    keys, _ = layers[0]
    tokens = keys.size(2) if used is None else (used + keys.size(2)) // 2  # on average, until the buffers grow
    q = keys.new_ones(len(keys), heads, queries, keys.size(3))
    mask = keys.new_zeros(len(keys), 1, queries, tokens) if masked else None

    def fused() -> None:
        for keys, values in layers:
            own = keys[:, :, :tokens], values[:, :, :tokens]
            F.scaled_dot_product_attention(q, *own, mask, enable_gqa=heads != keys.size(1))

    def batched() -> None:
        for keys, values in layers:
            batched_attention(q, keys, values, mask, None if used is None else tokens)

    racers: dict[str, Callable[[], None]] = {"fused": fused, "batched": batched}
    return decide(["attention", *sizes], [*racers], lambda: race(racers, RACE_SECONDS))[0] == "batched"
