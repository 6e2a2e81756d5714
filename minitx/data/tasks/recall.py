"""Tasks that ask for what stood before: in the question itself, not in the weights.

Legend: N examples, L symbols of the question, T symbols of the answer.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from minitx.data.tasks.base import (
    FIRST,
    MOST,
    QuestionTask,
    SequenceTask,
    check_at_least,
    check_range,
    numbered,
    register,
)
from minitx.data.tokenizers import Tokenizer


@register("induction")
@dataclass(kw_only=True)
class Induction(SequenceTask):
    """7 2 9 4 2 -> 9 4, how the string went on where its last symbol stood before.

    The symbols of the string are all different, but for the last one, which is one of them again (the task of the
    induction heads of Olsson et al. 2022: find where this symbol stood, and say what came next).
    """

    shortest: ClassVar[int] = 3

    symbols: int = 20
    """Number of different symbols, at least as many as the longest question but one: "0", "1", ..."""
    length: tuple[int, int] = (3, 16)
    """Shortest and longest question, both included; every length is equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("symbols", self.symbols, self.length[1] - 1)

    @property
    def longest(self) -> tuple[int, int]:
        """An answer ends before the question does, and its symbol has stood before."""
        return self.length[1], self.length[1] - 2

    @property
    def aligned(self) -> bool:
        """Never: how long the answer is depends on where the symbol stood."""
        return False

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """A string of different symbols, then any of them but its last."""
        lengths, longest = self.draw_lengths(generator, rows), self.length[1]
        ids = FIRST + _distinct(rows, longest - 1, self.symbols, generator)
        before = (torch.rand(rows, 1, generator=generator) * (lengths - 2)).long()  # 0 to lengths - 3
        ids = torch.cat((ids, ids[:, :1]), dim=1).scatter(1, lengths - 1, ids.gather(1, before))
        return self.padded(ids, lengths)

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """What stands between the symbol and its second place."""
        lengths = keep.sum(dim=1, keepdim=True)
        first = (source == source.gather(1, lengths - 1)).long().argmax(dim=1, keepdim=True)
        places = first + 1 + torch.arange(self.longest[1])  # [N, T]
        return self.padded(source.gather(1, places.clamp(max=source.size(1) - 1)), lengths - 2 - first)


@register("associative_recall")
@dataclass(kw_only=True)
class AssociativeRecall(QuestionTask):
    """0 9 3 6 1 8 1 0 -> 8 9, the values of the last keys: pairs of key and value, then keys that are asked for.

    Multi-query associative recall (MQAR, Arora et al. 2023), with all questions at the end. The lower half of the
    symbols are keys, the upper half values. No key stands twice in the pairs, none is asked for twice.
    """

    enlarge: ClassVar[str] = "data.symbols or data.pairs"

    symbols: int = 64
    """Number of different symbols, half of them keys: "0", "1", ..."""
    pairs: tuple[int, int] = (1, 4)
    """Fewest and most pairs of key and value; every number is equally likely."""
    queries: int = 2
    """Keys that are asked for; all of them where there are fewer pairs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("symbols", self.symbols, 2, MOST)
        if self.symbols % 2:
            raise ValueError(f"data.symbols must be even, half keys and half values, got {self.symbols}")
        check_range("pairs", self.pairs, 1)
        if self.pairs[1] > self.symbols // 2:
            raise ValueError(
                f"data.pairs must not go beyond the number of keys, data.symbols / 2 = {self.symbols // 2}, "
                f"got {[*self.pairs]}"
            )
        if not 1 <= self.queries <= self.pairs[1]:
            raise ValueError(
                f"data.queries must lie between 1 and the most data.pairs, {self.pairs[1]}, got {self.queries}"
            )

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """Symbols separated by spaces."""
        return numbered(self.symbols)

    @property
    def longest(self) -> tuple[int, int]:
        """With the most pairs."""
        return 2 * self.pairs[1] + self.queries, self.queries

    @property
    def aligned(self) -> bool:
        """Never: a question holds its pairs, and its answer does not."""
        return False

    @property
    def trained_lengths(self) -> tuple[int, int]:
        """data.pairs."""
        return self.pairs

    def of_length(self, length: int) -> Self:
        """The same task with that many pairs, and no more queries than that."""
        return dataclasses.replace(self, pairs=(length, length), queries=min(self.queries, length))

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Keys in any order, any values, queries in any order."""
        half, (fewest, most) = self.symbols // 2, self.pairs
        pairs = torch.randint(fewest, most + 1, (rows, 1), generator=generator)
        keys = _distinct(rows, most, half, generator)
        values = half + torch.randint(half, (rows, most), generator=generator)
        there = torch.arange(most) < pairs  # [N, most]
        order = torch.rand(rows, most, generator=generator).masked_fill(~there, 2.0).argsort(dim=1)
        asked = keys.gather(1, order[:, : self.queries])
        everything = torch.cat((torch.stack((keys, values), dim=2).flatten(1), asked), dim=1)
        place = torch.arange(2 * most + self.queries).expand(rows, -1)  # of what is written; pairs that are not are
        taken = place + (place >= 2 * pairs) * 2 * (most - pairs)  # skipped
        ids = everything.gather(1, taken.clamp(max=everything.size(1) - 1))
        return self.padded(FIRST + ids, 2 * pairs + pairs.clamp(max=self.queries))

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The value behind the key that equals each query."""
        lengths = keep.sum(dim=1, keepdim=True)
        asked = torch.where(lengths < 3 * self.queries, lengths // 3, self.queries)  # [N, 1]
        places = lengths - asked + torch.arange(self.queries)  # [N, T]
        queries = source.gather(1, places.clamp(max=source.size(1) - 1))
        keys, values = source[:, : 2 * self.pairs[1] : 2], source[:, 1 : 2 * self.pairs[1] : 2]
        found = (queries[:, :, None] == keys[:, None]).long().argmax(dim=2)  # the first, which is in the pairs
        return self.padded(values.gather(1, found), asked)


def _distinct(rows: int, count: int, below: int, generator: torch.Generator) -> Tensor:
    """`count` different numbers below `below` for each row, all choices and orders equally likely: [rows, count]."""
    drawn = torch.empty(rows, 0, dtype=torch.long)
    for left in range(below, below - count, -1):
        number = torch.randint(left, (rows, 1), generator=generator)  # which of those that are left
        for smaller in drawn.sort(dim=1).values.split(1, dim=1) if left < below else ():
            number = number + (number >= smaller)
        drawn = torch.cat((drawn, number), dim=1)
    return drawn
