"""Further tasks on strings of symbols.

Legend: N examples, L symbols of the question.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minitx.data.tasks.base import FIRST_SYMBOL_ID, register
from minitx.data.tasks.questions import SequenceTask


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
