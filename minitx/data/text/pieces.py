"""Texts assembled from a table of strings, many rows at once, without a loop over rows or characters.

Legend: N texts, P pieces of each, W characters of the longest; R strings, C characters of the longest.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minitx.data.text.tokenizer_training import lookup
from minitx.data.tokenizers import Tokenizer


class Pieces:
    """A table of strings from which texts are assembled.

    Args:
        texts: the R strings; empty ones are allowed.
        vocabulary: a tokenizer for characters.

    Raises:
        ConfigError: a character that the vocabulary lacks.
    """

    def __init__(self, texts: Sequence[str], vocabulary: Tokenizer) -> None:
        encode = lookup(vocabulary)
        assert encode is not None, "not a tokenizer for characters"
        ids, lengths = encode(texts)
        if (ids == vocabulary.special.unk).any():
            for text in texts:
                vocabulary.encode(text)  # its error names the character
        rows = torch.from_numpy(ids.astype(np.int64)).split(lengths.tolist())
        self.pad = vocabulary.special.pad
        # One row more than there are strings, so that there is a column even where all are empty.
        self.table = pad_sequence([*rows, torch.zeros(1, dtype=torch.long)], batch_first=True)  # [R + 1, C]
        self.lengths = torch.from_numpy(lengths)  # [R]

    def joined(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Texts from the indices of their pieces, [N, P], without gaps: ids and keep [N, W] for a given width W."""
        lengths = self.lengths[rows]  # [N, P]
        ends = lengths.cumsum(dim=1)
        column = torch.arange(width).repeat(rows.size(0), 1)  # [N, W]
        piece = torch.searchsorted(ends, column, right=True).clamp(max=rows.size(1) - 1)  # which piece a column is from
        within = column - (ends - lengths).gather(1, piece)
        keep = column < ends[:, -1:]
        ids = self.table[rows.gather(1, piece), within.clamp(max=self.table.size(1) - 1)]
        return ids.masked_fill(~keep, self.pad), keep
