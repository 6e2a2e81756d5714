"""Further tasks on strings of symbols, and formal languages: parity, majority, and matching brackets.

Legend: N examples, L symbols of the question, T symbols of the answer, D levels of a stack.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.validation import Size
from minitx.data import tokenizers
from minitx.data.tasks.base import FIRST_SYMBOL_ID, register
from minitx.data.tasks.question_tasks import LengthTask, SequenceTask
from minitx.data.tokenizers import Tokenizer


@register("copy_twice")
@dataclass(kw_only=True)
class CopyTwice(SequenceTask):
    """3 1 -> 3 1 3 1."""

    @property
    def longest(self) -> tuple[int, int]:
        return self.length[1], 2 * self.length[1]

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Token t of the answer is token (t mod length) of the question."""
        lengths, index = keep.sum(dim=1, keepdim=True), torch.arange(2 * source.size(1))
        return self.padded(source.gather(1, index % lengths), 2 * lengths)


@register("sort")
@dataclass(kw_only=True)
class Sort(SequenceTask):
    """3 1 2 -> 1 2 3."""

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Ids are in the order of their symbols; padding is sorted after all of them."""
        past_last = FIRST_SYMBOL_ID + self.symbols
        return self.padded(source.masked_fill(~keep, past_last).sort(dim=1).values, keep.sum(dim=1, keepdim=True))


@register("counting")
@dataclass(kw_only=True)
class Counting(LengthTask):
    """3 6 -> 3 4 5 6, all numbers from the first to the last (Zhou et al. 2024)."""

    aligned: ClassVar[bool] = False

    symbols: Size = 100
    """Number of different numbers: "0", "1", ..."""
    length: tuple[int, int] = (1, 16)
    """Shortest and longest answer, both included; all lengths are equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.symbols < (longest := self.length[1]):
            raise ConfigError(f"data.symbols must be at least {longest}, the longest answer, got {self.symbols}")

    @property
    def longest(self) -> tuple[int, int]:
        return 2, self.length[1]

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """The first and the last number, with all first numbers equally likely."""
        lengths = self.sample_lengths(generator, rows)
        first = (torch.rand(rows, 1, generator=generator) * (self.symbols - lengths + 1)).long()
        ids = FIRST_SYMBOL_ID + torch.cat((first, first + lengths - 1), dim=1)
        return ids, torch.ones_like(ids, dtype=torch.bool)

    def strata(self, source: Tensor, keep: Tensor) -> Tensor:
        """The length of the answer."""
        return source.gather(1, keep.sum(dim=1, keepdim=True) - 1)[:, 0] - source[:, 0] + 1

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        lengths = self.strata(source, keep)[:, None]
        width = max(self.length[1], int(lengths.max()))  # a typed question may ask for more than any in training
        return self.padded(source[:, :1] + torch.arange(width), lengths)


# ---- formal languages ------------------------------------------------------------------------------------------------


@register("parity")
@dataclass(kw_only=True)
class Parity(LengthTask):
    """1 0 1 1 -> 1, whether the number of ones is odd.

    As in Huang et al. (2025), all numbers of ones are equally likely.
    """

    enlarge: ClassVar[str] = "data.length"
    symbols: ClassVar[int] = 2

    @property
    def longest(self) -> tuple[int, int]:
        return self.length[1], 1

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Ones and zeros in random order."""
        lengths = self.sample_lengths(generator, rows)
        ones = self.sample_ones(torch.rand(rows, 1, generator=generator), lengths)
        keys = torch.rand(rows, self.length[1], generator=generator)
        rank = keys.masked_fill(torch.arange(self.length[1]) >= lengths, 2.0).argsort(dim=1).argsort(dim=1)
        return self.padded(FIRST_SYMBOL_ID + (rank < ones).long(), lengths)

    def sample_ones(self, chance: Tensor, lengths: Tensor) -> Tensor:
        """The number of ones, 0 to length, from a random number in [0, 1); all [N, 1]."""
        return (chance * (lengths + 1)).long()

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        ones = ((source - FIRST_SYMBOL_ID) * keep).sum(dim=1, keepdim=True)  # [N, 1]
        answer = FIRST_SYMBOL_ID + self.decide(ones, keep.sum(dim=1, keepdim=True))
        return answer, torch.ones_like(answer, dtype=torch.bool)

    def decide(self, ones: Tensor, length: Tensor) -> Tensor:
        """The answer, 0 or 1, to strings with this number of ones."""
        return ones % 2


@register("majority")
@dataclass(kw_only=True)
class Majority(Parity):
    """1 0 1 1 -> 1, the more frequent symbol. No question has as many zeros as ones."""

    def sample_ones(self, chance: Tensor, lengths: Tensor) -> Tensor:
        """All numbers are equally likely, except that half of an even length, a tie, is excluded."""
        even = 1 - lengths % 2
        ones = (chance * (lengths + 1 - even)).long()
        return ones + even * (2 * ones >= lengths)

    def decide(self, ones: Tensor, length: Tensor) -> Tensor:
        """Whether more than half of the symbols are ones."""
        return (2 * ones > length).long()


@register("dyck")
@dataclass(kw_only=True)
class Dyck(LengthTask):
    """( [ ( ) -> ] ), the brackets that close the open ones.

    A balanced question has an empty answer. Such questions are kept: without them, questions of even and odd length
    would come from different distributions.
    """

    BRACKETS: ClassVar[tuple[str, str]] = ("([{<", ")]}>")
    enlarge: ClassVar[str] = "data.kinds, data.depth or data.length"
    aligned: ClassVar[bool] = False

    kinds: Annotated[int, Interval(ge=1, le=4)] = 2
    """Number of kinds of brackets, at most 4: ( ), [ ], { } and < >."""
    depth: Size = 4
    """Maximum number of open brackets."""

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """Brackets separated by spaces: opening ones, then closing ones in the same order."""
        return tokenizers.symbols([bracket for side in self.BRACKETS for bracket in side[: self.kinds]])

    @property
    def longest(self) -> tuple[int, int]:
        """An answer closes at most `depth` brackets, and at most as many as the question has."""
        return self.length[1], min(self.depth, self.length[1])

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """A random walk: the next bracket opens or closes with equal probability where both are possible."""
        lengths, longest = self.sample_lengths(generator, rows), self.length[1]
        opening = torch.rand(rows, longest, generator=generator) < 0.5
        opening_ids = FIRST_SYMBOL_ID + torch.randint(self.kinds, (rows, longest), generator=generator)
        stack, height = opening_ids.new_zeros(rows, self.longest[1]), opening_ids.new_zeros(rows, 1)
        ids = []
        for index in range(longest):
            opens = (height == 0) | (opening[:, index, None] & (height < self.depth))  # [N, 1]
            closing_id = FIRST_SYMBOL_ID + self.kinds + stack.gather(1, (height - 1).clamp(min=0))
            ids.append(torch.where(opens, opening_ids[:, index, None], closing_id))
            stack, height = self._read(ids[-1], stack, height)
        return self.padded(torch.cat(ids, dim=1), lengths)

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The stack, from its top."""
        size = source.size(1)  # a typed question may be longer and deeper than any in training
        stack, height = source.new_zeros(len(source), size), source.new_zeros(len(source), 1)
        for bracket in source.split(1, dim=1):
            stack, height = self._read(bracket, stack, height)
        width = max(self.longest[1], int(height.max()))
        levels = (height - 1 - torch.arange(width)).clamp(min=0)  # [N, T]
        return self.padded(FIRST_SYMBOL_ID + self.kinds + stack.gather(1, levels), height)

    def _read(self, bracket: Tensor, stack: Tensor, height: Tensor) -> tuple[Tensor, Tensor]:
        """Stacks [N, D] of kinds and their heights [N, 1] after one more bracket [N, 1], which may be padding."""
        closes = bracket >= FIRST_SYMBOL_ID + self.kinds
        opens = (bracket >= FIRST_SYMBOL_ID) & ~closes
        pushed = stack.scatter(1, height.clamp(min=0, max=stack.size(1) - 1), bracket - FIRST_SYMBOL_ID)
        return torch.where(opens, pushed, stack), height + opens.long() - closes.long()
