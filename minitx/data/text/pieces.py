"""Strings by number, as ids, put together many rows at once: texts without a loop over rows or characters.

Legend: N examples, P pieces of one text, W the longest text, R strings, C characters of the longest string.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from minitx.data.text.lookup import lookup
from minitx.data.tokenizers import Tokenizer


class Pieces:
    """A table of strings to build texts from.

    Args:
        texts: the R strings; empty ones are allowed.
        vocabulary: turns them into ids, character by character.

    Raises:
        ConfigError: a character that the vocabulary does not hold.
    """

    def __init__(self, texts: Sequence[str], vocabulary: Tokenizer) -> None:
        cut = lookup(vocabulary)
        assert cut is not None, "not character by character"
        ids, lengths = cut(texts)
        if (ids == vocabulary.special.unk).any():
            for text in texts:
                vocabulary.encode(text)  # which tells the character
        rows = torch.from_numpy(ids.astype(np.int64)).split(lengths.tolist())
        self.pad = vocabulary.special.pad
        self.table = torch.nn.utils.rnn.pad_sequence([*rows, torch.zeros(1, dtype=torch.long)], batch_first=True)
        """[R + 1, C]; one more row, so that there is a column even where all strings are empty."""
        self.lengths = torch.from_numpy(lengths)
        """[R]."""

    def joined(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Texts from the numbers of their pieces, [N, P], without gaps: ids and keep [N, W], W the width asked for."""
        lengths = self.lengths[rows]  # [N, P]
        ends = lengths.cumsum(dim=1)
        place = torch.arange(width).repeat(rows.size(0), 1)  # [N, W]
        piece = torch.searchsorted(ends, place, right=True).clamp(max=rows.size(1) - 1)  # whose character stands there
        within = place - (ends - lengths).gather(1, piece)
        keep = place < ends[:, -1:]
        ids = self.table[rows.gather(1, piece), within.clamp(max=self.table.size(1) - 1)]
        return ids.masked_fill(~keep, self.pad), keep
