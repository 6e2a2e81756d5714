"""Characters and bytes to ids by a table, a hundred times as fast as a tokenizer where each is always one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from minitx.data.characters import code_points
from minitx.data.tokenizers import Tokenizer


class Lookup(NamedTuple):
    """The ids of a tokenizer that has one token for each character, or one for each byte."""

    table: np.ndarray  # by code point, or by byte; the last entry is for all larger code points
    by_byte: bool

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The concatenated ids of texts, and the number of ids of each text."""
        if self.by_byte:
            parts = [text.encode() for text in texts]
            return self.table[np.frombuffer(b"".join(parts), np.uint8)], np.array([*map(len, parts)], dtype=np.int64)
        indices = code_points("".join(texts))
        if indices.itemsize > 1:
            indices = np.minimum(indices, len(self.table) - 1)
        return self.table[indices], np.array([*map(len, texts)], dtype=np.int64)


def lookup(tokenizer: Tokenizer) -> Lookup | None:
    """The table of a tokenizer for characters or bytes; None for any other."""
    if tokenizer.unit == "character":
        tokens = enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))
        known = {ord(token): index for index, token in tokens if len(token) == 1}
        table = np.full(max([*known, 255]) + 2, tokenizer.special.unk, dtype=np.uint32)
        table[list(known)] = list(known.values())
        return Lookup(table, by_byte=False)
    if tokenizer.unit == "byte":
        # A text with every byte that occurs in UTF-8: continuation bytes, and lead bytes of 2, 3 and 4; no surrogates.
        text = "".join(map(chr, [*range(256), *range(256, 0xD800, 64), *range(0xE000, 0x110000, 64)]))
        table = np.full(256, tokenizer.special.unk, dtype=np.uint32)
        table[np.frombuffer(text.encode(), np.uint8)] = tokenizer.encode(text)
        return Lookup(table, by_byte=True)
    return None
