"""What a task yields, before framing lays it out for an architecture.

Legend: N examples, S source symbols, T target symbols.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor


class Pairs(NamedTuple):
    """Questions and answers, padded on the right with <pad>, without any other special token."""

    source: Tensor  # [N, S]
    source_keep: Tensor  # [N, S], True for a real symbol
    target: Tensor  # [N, T]
    target_keep: Tensor  # [N, T]


class Stream(NamedTuple):
    """Pieces of running text, each block + 1 tokens: a model reads all but the last and predicts all but the first."""

    ids: Tensor  # [N, T + 1]; the padding id marks what is past the end of the text


class Masked(NamedTuple):
    """Text with some tokens hidden, padded on the right."""

    source: Tensor  # [N, T], what can be read
    source_keep: Tensor  # [N, T], True for a real token
    target: Tensor  # [N, T], the text itself
    chosen: Tensor  # [N, T], True for a token that is to be predicted


class PackedStream(NamedTuple):
    """A Stream in which the documents of a row do not see each other."""

    ids: Tensor  # [N, T + 1]
    documents: Tensor  # [N, T + 1], a number for each token's


class PackedMasked(NamedTuple):
    """Masked in which the documents of a row do not see each other."""

    source: Tensor  # [N, T]
    source_keep: Tensor  # [N, T]
    target: Tensor  # [N, T]
    chosen: Tensor  # [N, T]
    documents: Tensor  # [N, T], a number for each token's


Examples = Pairs | Stream | Masked | PackedStream | PackedMasked
Kind = Literal["pairs", "stream", "masked"]
"""What a task yields."""


def rows(examples: Examples, start: int, end: int) -> Examples:
    """A slice of the examples."""
    return type(examples)(*(tensor[start:end] for tensor in examples))


def count(examples: Examples) -> int:
    """How many examples there are."""
    return examples[0].size(0)
