"""Which examples are for training and which are held out: decided by their content, so no two splits can overlap.

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
"""Shares of all possible examples that training never sees."""

_MULTIPLIER = 6364136223846793005  # Knuth's MMIX generator
_BUCKETS = 1000
_PATIENCE = 20  # draws in a row without anything new before a task's examples count as used up


def content_hash(ids: Tensor, keep: Tensor) -> Tensor:
    """A hash of each row's real tokens: ids and keep [N, L] to int64 [N]. The same in every process.

    A polynomial in a fixed multiplier modulo 2^64 (integer overflow wraps), then two rounds of xor-shift-multiply so
    that close rows fall into unrelated buckets. In NumPy, whose small operations cost a third of torch's: this is done
    for every training batch.
    """
    powers, beside = _weights(ids.size(1))
    mixed = np.multiply(ids.numpy().view(np.uint64) * powers + beside, keep.numpy()).sum(axis=1)
    for _ in range(2):
        mixed = (mixed ^ (mixed >> 32)) * np.uint64(_MULTIPLIER)
    return torch.from_numpy((mixed ^ (mixed >> 29)).view(np.int64))


@cache
def _weights(width: int) -> tuple[np.ndarray, np.ndarray]:
    """The polynomial's powers, uint64 [width], and what a token adds whose id is 0."""
    powers = [1]
    for _ in range(width):
        powers.append((powers[-1] * _MULTIPLIER + 1) % 2**64)
    found = np.array(powers[1:], dtype=np.uint64)
    return found, found + np.uint64(1)


def in_split(hashes: Tensor, split: Split) -> Tensor:
    """Which rows belong to a split: int64 [N] to bool [N]."""
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
    """Draw until `size` examples of a split are there.

    Args:
        draw: from a number of rows to ids and keep, each [N, L].
        size: how many to return.
        split: the split they must belong to.
        distinct: no example twice, for a fixed set; fewer than `size` come back where there are no more.
        enlarge: the options to make larger where there are too few, for the message.
        deciding: from ids and keep [N, L] to that part of them, [N, K], which decides on the split; by default the
            whole. Examples that agree in it are in the same split, however else they differ.

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
    while count < size and idle < _PATIENCE:
        ids, keep = draw(int((size - count) / share * 1.1) + 16)
        chosen = in_split(content_hash(*deciding(ids, keep)), split).nonzero()[:, 0]
        if distinct:
            new = []
            whole = content_hash(ids[chosen], keep[chosen])
            for row, value in zip(chosen.tolist(), whole.tolist(), strict=True):
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
