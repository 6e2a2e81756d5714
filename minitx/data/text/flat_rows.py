"""Rows of ids of different lengths, from which batches of texts are assembled without a loop.

Legend: R rows, N texts, P rows of each text, L tokens of the longest text.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class FlatRows:
    """R rows of ids, concatenated in one tensor."""

    def __init__(self, rows: Sequence[Sequence[int]], pad: int) -> None:
        self.pad = pad
        self.lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)  # [R]
        self._ids = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
        self._starts = self.lengths.cumsum(0) - self.lengths

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
