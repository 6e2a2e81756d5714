"""Text as numbers of characters, and cut into pieces that a tokenizer can take."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

PIECE = 4096
"""Characters that a tokenizer is given at once, at most."""


def border(text: str, start: int, end: int) -> int:
    """The best place to cut text between start and end: behind a line break, before a space, or anywhere."""
    return text.rfind("\n", start, end) + 1 or max(text.rfind(" ", start + 1, end), 0) or end


def pieces(text: str) -> Iterator[str]:
    """A text in pieces that a tokenizer can take; see border. Nothing is lost."""
    start = 0
    while len(text) - start > PIECE:
        end = border(text, start, start + PIECE)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def code_points(text: str) -> np.ndarray:
    """The number of each character."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), np.uint8)
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
