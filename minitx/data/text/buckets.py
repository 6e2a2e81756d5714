"""Rows of different lengths, and batches of rows that are about equally long, so that little of a batch is padding.

Legend: N rows, L tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Rows:
    """Rows of ids, end to end in one tensor.

    Args:
        rows: ids of each row.
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)  # [N]
        self._ids = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
        self._starts = self.lengths.cumsum(0) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, which: Tensor, pad: int) -> tuple[Tensor, Tensor]:
        """Some rows [N], padded on the right to the longest of them: ids and keep [N, L]."""
        lengths = self.lengths[which][:, None]
        place = torch.arange(int(lengths.max()))
        keep = place < lengths
        ids = self._ids[(self._starts[which][:, None] + place).clamp(max=len(self._ids) - 1)]
        return ids.long().masked_fill(~keep, pad), keep


class Buckets:
    """The places of rows, sorted by length and cut into buckets of about equally many.

    Args:
        lengths: of the rows [N], or whatever shall be about equal within a bucket.
        count: number of buckets; 1 mixes all lengths, and so do less.
    """

    def __init__(self, lengths: Tensor, count: int) -> None:
        self._order = lengths.argsort(stable=True)
        count = max(1, min(count, len(lengths)))
        self._edges = torch.arange(count + 1) * len(lengths) // count  # [count + 1], the first is 0, the last N

    def draw(self, generator: torch.Generator, size: int) -> Tensor:
        """Places of `size` rows of one bucket [N], with replacement: every row is as likely as any other.

        A row chosen among all tells the bucket, so a bucket is drawn in proportion to its rows.
        """
        chosen = torch.randint(len(self._order), (1,), generator=generator)
        bucket = int(torch.searchsorted(self._edges, chosen, right=True)) - 1
        first, last = self._edges[bucket : bucket + 2].tolist()
        return self._order[torch.randint(first, last, (size,), generator=generator)]
