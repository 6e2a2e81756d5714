"""Training, validation and test splits by a hash of an example's content, so that no two splits overlap.

Legend: N examples, L symbols.
"""

from functools import cache
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

Split = Literal["training", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

BUCKETS = 1000  # that hashes fall into
OWN_BUCKETS: dict[Split, range] = {"validation": range(50), "test": range(50, 150), "training": range(150, BUCKETS)}
SHARES = {split: len(own) / BUCKETS for split, own in OWN_BUCKETS.items()}  # shares of all possible examples
MULTIPLIER = 6364136223846793005  # of Knuth's MMIX generator


def content_hash(ids: Tensor, keep: Tensor) -> Tensor:
    """Hash each row's real tokens: ids and keep [N, L] to int64 [N], the same in every process.

    A polynomial in a fixed multiplier modulo 2^64 (integer overflow wraps), then two rounds of xor-shift-multiply, so
    that similar rows fall into unrelated buckets. NumPy, since this runs for every training batch and its small
    operations take a third of the time of torch's.
    """
    powers = _powers(ids.size(1))
    terms = ids.numpy().view(np.uint64) * powers + (powers + np.uint64(1))
    hashes = np.multiply(terms, keep.numpy()).sum(axis=1)
    for _ in range(2):
        hashes = (hashes ^ (hashes >> 32)) * np.uint64(MULTIPLIER)
    return torch.from_numpy((hashes ^ (hashes >> 29)).view(np.int64))


@cache
def _powers(width: int) -> np.ndarray:
    """1 + M, 1 + M + M^2, ... of the multiplier M: uint64 [width]."""
    return np.full(width, MULTIPLIER, dtype=np.uint64).cumprod().cumsum() + np.uint64(1)


def in_split(hashes: Tensor, split: Split) -> Tensor:
    """Membership of hashes in a split: int64 [N] to bool [N]."""
    bucket, own = (hashes.numpy() & 0x7FFFFFFFFFFFFFFF) % BUCKETS, OWN_BUCKETS[split]
    return torch.from_numpy((bucket >= own.start) & (bucket < own.stop))


def matched(plan: Tensor, strata: Tensor) -> Tensor:
    """Give each planned stratum [P] the next row of that stratum, from the strata of N rows: row indices [P], or -1."""
    planned, rows = plan.numpy(), strata.numpy()
    plan_order, row_order = planned.argsort(kind="stable"), rows.argsort(kind="stable")
    planned, rows = planned[plan_order], rows[row_order]
    place = rows.searchsorted(planned) + np.arange(len(planned)) - planned.searchsorted(planned)
    fits = place < rows.searchsorted(planned, side="right")
    match = np.full(len(planned), -1)
    match[plan_order[fits]] = row_order[place[fits]]
    return torch.from_numpy(match)
