"""Text as characters: code points, and long texts cut into pieces that a tokenizer can take."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

MAX_PIECE_CHARACTERS = 4096
"""Maximum number of characters handed to a tokenizer at once."""


def border(text: str, start: int, end: int) -> int:
    """The best index between start and end to cut a text: after a line break, before a space, or anywhere."""
    return text.rfind("\n", start, end) + 1 or max(text.rfind(" ", start + 1, end), 0) or end


def pieces(text: str) -> Iterator[str]:
    """Cut a text at borders into pieces of at most MAX_PIECE_CHARACTERS; joined, they are the text."""
    start = 0
    while len(text) - start > MAX_PIECE_CHARACTERS:
        end = border(text, start, start + MAX_PIECE_CHARACTERS)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def code_points(text: str) -> np.ndarray:
    """The code point of each character."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), np.uint8)
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
