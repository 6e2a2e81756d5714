"""Rows of different lengths, and sampling of batches whose rows are about equally long, so that padding is rare.

Legend: N rows, L tokens of the longest.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class Rows:
    """Rows of ids, concatenated in one tensor."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)  # [N]
        self._ids = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
        self._starts = self.lengths.cumsum(0) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, chosen: Tensor, pad: int) -> tuple[Tensor, Tensor]:
        """Some rows, by their indices [N], padded on the right to the longest of them: ids and keep [N, L]."""
        lengths = self.lengths[chosen][:, None]
        column = torch.arange(int(lengths.max()))
        keep = column < lengths
        ids = self._ids[(self._starts[chosen][:, None] + column).clamp(max=len(self._ids) - 1)]
        return ids.long().masked_fill(~keep, pad), keep


class Buckets:
    """Indices of rows, sorted by length and cut into buckets of about equal numbers of rows.

    Args:
        lengths: of the rows [N], or any other key that should be similar within a bucket.
        count: number of buckets; 1 mixes all lengths, and so do smaller numbers.
    """

    def __init__(self, lengths: Tensor, count: int) -> None:
        self._order = lengths.argsort(stable=True)
        count = max(1, min(count, len(lengths)))
        self._edges = torch.arange(count + 1) * len(lengths) // count  # [count + 1], the first is 0, the last N

    def draw(self, generator: torch.Generator, size: int) -> Tensor:
        """Sample the indices of `size` rows of one bucket, with replacement: every row is as likely as any other.

        A row sampled among all rows determines the bucket, so a bucket's probability is its share of the rows.
        """
        row = torch.randint(len(self._order), (1,), generator=generator)
        bucket = int(torch.searchsorted(self._edges, row, right=True)) - 1
        first, last = self._edges[bucket : bucket + 2].tolist()
        return self._order[torch.randint(first, last, (size,), generator=generator)]
