"""Tasks of in-context recall: the answer is in the question, not in the weights.

Legend: N examples, L symbols of the question, T symbols of the answer, Q queries.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.validation import NaturalSize, Size
from minitx.data.batch import IGNORE
from minitx.data.examples import Pairs
from minitx.data.tasks.base import FIRST_SYMBOL_ID, register
from minitx.data.tasks.question_tasks import LengthTask, QuestionTask


@register("induction")
@dataclass(kw_only=True)
class Induction(LengthTask):
    """7 2 9 4 2 -> 9 4, the continuation after the earlier occurrence of the last symbol.

    All symbols but the last are different, and the last repeats one of them (the task of the induction heads of Olsson
    et al. 2022: find the earlier occurrence, and predict what followed it).
    """

    shortest: ClassVar[int] = 3
    aligned: ClassVar[bool] = False

    symbols: Size = 20
    """Number of different symbols, at least the longest question minus one: "0", "1", ..."""
    length: tuple[int, int] = (3, 16)
    """Shortest and longest question, both included; all lengths are equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.symbols < (least := self.length[1] - 1):
            raise ConfigError(f"data.symbols must be at least {least}, the longest question - 1, got {self.symbols}")

    @property
    def longest(self) -> tuple[int, int]:
        """An answer lacks the repeated symbol at either end."""
        return self.length[1], self.length[1] - 2

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """A string of different symbols, then any of them except its last."""
        lengths, longest = self.sample_lengths(generator, rows), self.length[1]
        ids = FIRST_SYMBOL_ID + distinct(rows, longest - 1, self.symbols, generator)
        earlier = (torch.rand(rows, 1, generator=generator) * (lengths - 2)).long()  # 0 to lengths - 3
        ids = torch.cat((ids, ids[:, :1]), dim=1).scatter(1, lengths - 1, ids.gather(1, earlier))
        return self.padded(ids, lengths)

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The symbols between the two occurrences."""
        lengths = keep.sum(dim=1, keepdim=True)
        first = (source == source.gather(1, lengths - 1)).long().argmax(dim=1, keepdim=True)
        width = max(self.longest[1], source.size(1) - 2)  # a typed question may be longer than any in training
        index = first + 1 + torch.arange(width)  # [N, T]
        return self.padded(source.gather(1, index.clamp(max=source.size(1) - 1)), lengths - 2 - first)


@register("associative_recall")
@dataclass(kw_only=True)
class AssociativeRecall(QuestionTask):
    """0 9 3 6 1 8 1 0 -> 8 9, pairs of key and value, then queries, which are answered by the values of these keys.

    Multi-query associative recall (MQAR, Arora et al. 2023). The lower half of the symbols are keys, the upper half
    values. Keys of pairs are distinct, and so are queries. `filler` puts values without a meaning among the queries.

    With `interleaved`, the model reads 0 9 3 6 1 8 and answers 1 8 0 9, in which the queries are given: each value is
    predicted at its query, as in the paper's code. Texts of questions and answers are the same in both layouts.
    """

    enlarge: ClassVar[str] = "data.symbols or data.pairs"
    length_option: ClassVar[str | None] = "pairs"
    shortest: ClassVar[int] = 1
    aligned: ClassVar[bool] = False

    symbols: Size = 64
    """Number of different symbols, half of them keys: "0", "1", ..."""
    pairs: tuple[int, int] = (1, 4)
    """Minimum and maximum number of pairs of key and value; all numbers are equally likely."""
    queries: Size = 2
    """Number of queries; all keys if there are fewer pairs."""
    filler: NaturalSize = 0
    """Number of random values among the queries, to be ignored."""
    interleaved: bool = False
    """Predict each value right after its query, not all values after the last query."""

    def __post_init__(self) -> None:
        super().__post_init__()
        keys, most = self.symbols // 2, self.pairs[1]
        if self.symbols % 2:
            raise ConfigError(f"data.symbols must be even, half keys and half values, got {self.symbols}")
        if most > keys:
            raise ConfigError(f"data.pairs must be at most {keys}, the keys in data.symbols, got {[*self.pairs]}")
        if self.queries > most:
            raise ConfigError(f"data.queries must be at most the maximum of data.pairs, {most}, got {self.queries}")

    @property
    def longest(self) -> tuple[int, int]:
        if self.interleaved:
            return 2 * self.pairs[1], 2 * self.queries + self.filler
        return 2 * self.pairs[1] + self.queries + self.filler, self.queries

    def of_length(self, length: int) -> Self:
        """The same task with that many pairs, and at most as many queries."""
        return dataclasses.replace(self, pairs=(length, length), queries=min(self.queries, length))

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Distinct keys in random order, random values, queries and filler in random order."""
        half, maximum = self.symbols // 2, self.pairs[1]
        pairs = self.sample_lengths(generator, rows)
        keys = distinct(rows, maximum, half, generator)
        values = half + torch.randint(half, (rows, maximum), generator=generator)
        present = torch.arange(maximum) < pairs  # [N, maximum]
        order = torch.rand(rows, maximum, generator=generator).masked_fill(~present, 2.0).argsort(dim=1)
        asked = keys.gather(1, order[:, : self.queries])
        if self.filler:
            asked = torch.cat((asked, half + torch.randint(half, (rows, self.filler), generator=generator)), dim=1)
            absent = F.pad(~present[:, : self.queries], (0, self.filler))
            order = torch.rand(asked.shape, generator=generator).masked_fill(absent, 2.0).argsort(dim=1)
            asked = asked.gather(1, order)
        everything = torch.cat((torch.stack((keys, values), dim=2).flatten(1), asked), dim=1)
        column = torch.arange(everything.size(1)).expand(rows, -1)
        index = column + (column >= 2 * pairs) * 2 * (maximum - pairs)  # queries follow the last present pair
        ids = everything.gather(1, index.clamp(max=everything.size(1) - 1))
        return self.padded(FIRST_SYMBOL_ID + ids, 2 * pairs + pairs.clamp(max=self.queries) + self.filler)

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The value of the key that equals each query."""
        _, is_query, values, count = self._asked(source, keep)
        order = (~is_query).long().argsort(dim=1, stable=True)
        return self.padded(values.gather(1, order[:, : self.queries]), count)

    def answered(self, source: Tensor, keep: Tensor) -> Pairs:
        """Questions with their answers, in which interleaved queries and filler are given."""
        if not self.interleaved:
            return super().answered(source, keep)
        asked, is_query, values, count = self._asked(source, keep)
        end = count + self.filler
        shown = self.padded(source[:, : 2 * self.pairs[1]], keep.sum(dim=1, keepdim=True) - end)
        index = torch.arange(asked.size(1)) + is_query.cumsum(dim=1) - is_query.long()  # the values before it
        target = source.new_zeros(len(source), self.longest[1] + 1)
        given = torch.zeros_like(target, dtype=torch.bool).scatter(1, index, value=True)[:, :-1]
        target = target.scatter(1, index + 1, values).scatter(1, index, asked)  # filler's values are overwritten
        target, target_keep = self.padded(target[:, :-1], end + count)
        return Pairs(*shown, target, target_keep, target_keep & given)

    def divide(self, question: list[int]) -> tuple[list[int], list[int]]:
        """Pairs are read first, one for each value that is not filler; interleaved queries and filler follow."""
        if not self.interleaved:
            return super().divide(question)
        is_value = [token >= FIRST_SYMBOL_ID + self.symbols // 2 for token in question]
        end = 2 * max(0, sum(is_value) - self.filler)
        following = zip(question[end:], is_value[end:], strict=True)
        given = [part for token, known in following for part in ((token,) if known else (token, IGNORE))]
        return super().divide(question[:end])[0], given

    def _asked(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of questions: the symbols after the pairs [N, Q + filler], with anything after the last, which of them are
        queries, the values of these, and their number [N, 1]."""
        lengths = keep.sum(dim=1, keepdim=True)
        count = ((lengths - self.filler) // 3).clamp(max=self.queries)
        index = lengths - count - self.filler + torch.arange(self.queries + self.filler)
        asked = source.gather(1, index.clamp(max=source.size(1) - 1))
        is_query = asked < FIRST_SYMBOL_ID + self.symbols // 2
        keys, values = source[:, : 2 * self.pairs[1] : 2], source[:, 1 : 2 * self.pairs[1] : 2]
        found = (asked[:, :, None] == keys[:, None]).long().argmax(dim=2)  # the first occurrence is in the pairs
        return asked, is_query, values.gather(1, found), count


def distinct(rows: int, count: int, below: int, generator: torch.Generator) -> Tensor:
    """Sample `count` distinct numbers below `below` for each row, all choices and orders equally likely: [N, count]."""
    numbers = torch.empty(rows, 0, dtype=torch.long)
    for left in range(below, below - count, -1):
        number = torch.randint(left, (rows, 1), generator=generator)  # the index among the remaining numbers
        taken = numbers.sort(dim=1).values - torch.arange(numbers.size(1))  # number of remaining ones below each
        numbers = torch.cat((numbers, number + (taken <= number).sum(dim=1, keepdim=True)), dim=1)
    return numbers
