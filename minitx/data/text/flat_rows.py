"""Rows of ids of different lengths, from which batches of texts are assembled without a loop.

Legend: R rows, N texts, P rows of each text, L tokens of the longest text.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor


class FlatRows:
    """R rows of ids, concatenated in one tensor, with their lengths [R]."""

    def __init__(self, ids: Tensor, lengths: Tensor, pad: int) -> None:
        self._ids, self.lengths, self.pad = ids.int(), lengths, pad
        self._starts = lengths.cumsum(0) - lengths

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], pad: int) -> Self:
        """Concatenate lists of ids."""
        lengths = torch.tensor([*map(len, rows)], dtype=torch.long)
        return cls(torch.tensor([token for row in rows for token in row]), lengths, pad)

    def __len__(self) -> int:
        return len(self.lengths)

    def joined(self, rows: Tensor, width: int | None = None) -> tuple[Tensor, Tensor]:
        """Texts of rows, given by their indices [N, P]: ids and keep [N, L], of the given width or the longest text."""
        lengths = self.lengths[rows]  # [N, P]
        ends = lengths.cumsum(dim=1)
        column = torch.arange(int(ends[:, -1].max()) if width is None else width).repeat(len(rows), 1)  # [N, L]
        part = torch.searchsorted(ends, column, right=True).clamp(max=rows.size(1) - 1)  # which row a column is from
        index = column + (self._starts[rows] - ends + lengths).gather(1, part)
        keep = column < ends[:, -1:]
        return self._ids[index.clamp(max=len(self._ids) - 1)].long().masked_fill(~keep, self.pad), keep
