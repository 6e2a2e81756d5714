"""Further tasks on strings of symbols.

Legend: N examples, L symbols of the question, T symbols of the answer.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.schema import Size
from minitx.data.tasks.base import FIRST_SYMBOL_ID, numbered, register
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
        """Token t of the answer is token t modulo length of the question."""
        lengths, index = keep.sum(dim=1, keepdim=True), torch.arange(2 * source.size(1))
        return self.padded(source.gather(1, index % lengths), 2 * lengths)


@register("sort")
@dataclass(kw_only=True)
class Sort(SequenceTask):
    """3 1 2 -> 1 2 3."""

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Ids are in the order of their symbols; padding is sorted after all of them."""
        largest = FIRST_SYMBOL_ID + self.symbols
        return self.padded(source.masked_fill(~keep, largest).sort(dim=1).values, keep.sum(dim=1, keepdim=True))


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

    @cached_property
    def vocabulary(self) -> Tokenizer:
        return numbered(self.symbols)

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
        return source[:, 1] - source[:, 0] + 1

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        return self.padded(source[:, :1] + torch.arange(self.length[1]), self.strata(source, keep)[:, None])
