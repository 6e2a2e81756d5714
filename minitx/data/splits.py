"""Training, validation and test splits by a hash of an example's content, so that no two splits overlap.

Legend: N examples, L symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from minitx.config.errors import ConfigError

Split = Literal["training", "validation", "test"]
SPLITS: tuple[str, ...] = get_args(Split)

VALIDATION_SHARE, TEST_SHARE = 0.05, 0.10
"""Held-out shares of all possible examples."""

_MULTIPLIER = 6364136223846793005  # Knuth's MMIX generator
_BUCKETS = 1000
_MAX_IDLE_DRAWS = 20  # in a row without a new example, after which a task counts as exhausted


def content_hash(ids: Tensor, keep: Tensor) -> Tensor:
    """Hash each row's real tokens: ids and keep [N, L] to int64 [N], the same in every process.

    A polynomial in a fixed multiplier modulo 2^64 (integer overflow wraps), then two rounds of xor-shift-multiply, so
    that similar rows fall into unrelated buckets. NumPy, since this runs for every training batch and its small
    operations take a third of the time of torch's.
    """
    powers, offsets = _weights(ids.size(1))
    hashes = np.multiply(ids.numpy().view(np.uint64) * powers + offsets, keep.numpy()).sum(axis=1)
    for _ in range(2):
        hashes = (hashes ^ (hashes >> 32)) * np.uint64(_MULTIPLIER)
    return torch.from_numpy((hashes ^ (hashes >> 29)).view(np.int64))


@cache
def _weights(width: int) -> tuple[np.ndarray, np.ndarray]:
    """The polynomial's powers, uint64 [width], and the terms of id 0."""
    powers = [1]
    for _ in range(width):
        powers.append((powers[-1] * _MULTIPLIER + 1) % 2**64)
    factors = np.array(powers[1:], dtype=np.uint64)
    return factors, factors + np.uint64(1)


def in_split(hashes: Tensor, split: Split) -> Tensor:
    """Membership of hashes in a split: int64 [N] to bool [N]."""
    bucket = (hashes.numpy() & 0x7FFFFFFFFFFFFFFF) % _BUCKETS
    validation = int(_BUCKETS * VALIDATION_SHARE)
    held_out = validation + int(_BUCKETS * TEST_SHARE)
    if split == "training":
        belongs = bucket >= held_out
    elif split == "validation":
        belongs = bucket < validation
    else:
        belongs = (bucket >= validation) & (bucket < held_out)
    return torch.from_numpy(belongs)


def draw_split(
    draw: Callable[[int], tuple[Tensor, Tensor]],
    size: int,
    split: Split,
    distinct: bool,
    enlarge: str = "data.symbols or data.length",
    deciding: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda ids, keep: (ids, keep),
) -> tuple[Tensor, Tensor]:
    """Sample until `size` examples of a split are found.

    Args:
        draw: samples a number of rows: ids and keep, each [N, L].
        size: number of examples.
        split: of the examples.
        distinct: no duplicates, for a fixed set, which is smaller than `size` where there are no more.
        enlarge: the options to increase where there are too few, for the message.
        deciding: from ids and keep [N, L] to the part of them, [N, K], that decides the split; by default the whole.
            Examples that agree in it are in the same split.

    Returns:
        ids and keep, each [size, L] or shorter.

    Raises:
        ConfigError: the task has no example for this split.
    """
    share = {
        "training": 1 - VALIDATION_SHARE - TEST_SHARE,
        "validation": VALIDATION_SHARE,
        "test": TEST_SHARE,
    }[split]
    found: list[tuple[Tensor, Tensor]] = []
    seen: set[int] = set()
    count = idle = 0
    while count < size and idle < _MAX_IDLE_DRAWS:
        ids, keep = draw(int((size - count) / share * 1.1) + 16)
        chosen = in_split(content_hash(*deciding(ids, keep)), split).nonzero()[:, 0]
        if distinct:
            new = []
            hashes = content_hash(ids[chosen], keep[chosen])
            for row, value in zip(chosen.tolist(), hashes.tolist(), strict=True):
                if value not in seen:
                    seen.add(value)
                    new.append(row)
            chosen = torch.tensor(new, dtype=torch.long)
        idle = 0 if len(chosen) else idle + 1
        chosen = chosen[: size - count]
        count += len(chosen)
        found.append((ids.index_select(0, chosen), keep.index_select(0, chosen)))
    ids, keep = found[0] if len(found) == 1 else (torch.cat(parts) for parts in zip(*found, strict=True))
    if not len(ids) or (not distinct and len(ids) < size):
        raise ConfigError(
            f"data: this task has too few different examples to hold any out for {split}; make {enlarge} larger"
        )
    return ids, keep
