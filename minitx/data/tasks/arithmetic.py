"""Addition, digit by digit and modulo a number.

Legend: N examples, W digits of the longer operand, L symbols of the question.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.examples import Pairs
from minitx.data.splits import SPLITS, Split
from minitx.data.tasks import base
from minitx.data.tasks.base import FIRST_SYMBOL_ID, Task, register
from minitx.data.tasks.question_tasks import QuestionTask
from minitx.data.text.tokenizer_training import CharTokenizer
from minitx.data.tokenizers import Tokenizer

PLUS, ZERO = FIRST_SYMBOL_ID, FIRST_SYMBOL_ID + 1
"""The ids of + and of the digit 0; those of the other digits follow."""


@register("addition")
@dataclass(kw_only=True)
class Addition(QuestionTask):
    """12+34 -> 46, digit by digit.

    The pair of operands decides the split, however the operands are written. 12+34 and 34+12 are two examples.
    """

    enlarge: ClassVar[str] = "data.digits"
    length_option: ClassVar[str | None] = "digits"
    shortest: ClassVar[int] = 1

    digits: tuple[int, int] = (1, 3)
    """Minimum and maximum digits of an operand, both included; all numbers of digits are equally likely."""
    reverse: bool = False
    """Whether the answer is written from its lowest digit: 12+34 -> 64."""
    reverse_operands: bool = False
    """Whether the operands are written from their lowest digit: 21+43 -> 46."""
    pad: bool = False
    """Whether the shorter operand is padded with zeros: 007+123 -> 130."""

    @cached_property
    def vocabulary(self) -> Tokenizer:
        return CharTokenizer().train([["+0123456789"]])

    @property
    def longest(self) -> tuple[int, int]:
        """A sum has at most one digit more than its operands."""
        return 2 * self.digits[1] + 1, self.digits[1] + 1

    @property
    def boundaries(self) -> list[int]:
        """Ids restart at the second operand too: reversed digits of equal significance have equal ids."""
        return [*super().boundaries, PLUS]

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Two operands from the highest digit, without leading zeros."""
        maximum, lengths = self.digits[1], self.sample_lengths(generator, 2 * rows).view(rows, 2, 1)
        numbers = torch.randint(10, (rows, 2, maximum), generator=generator)  # from the lowest digit
        highest = torch.randint(1, 10, (rows, 2, 1), generator=generator)
        numbers = torch.where((torch.arange(maximum) == lengths - 1) & (lengths > 1), highest, numbers)
        return self._sum(numbers, lengths, False)

    def strata(self, source: Tensor, keep: Tensor) -> Tensor:
        """The digits of both operands, as one number."""
        _, lengths = _operands(source, keep)
        return lengths[:, 0, 0] * (self.digits[1] + 1) + lengths[:, 1, 0]

    def answered(self, source: Tensor, keep: Tensor) -> Pairs:
        numbers, lengths = _operands(source, keep)
        if self.pad:
            lengths = lengths.amax(dim=1, keepdim=True).expand_as(lengths)
        return Pairs(*self._sum(numbers, lengths, self.reverse_operands), *self._written(*_add(numbers), self.reverse))

    def _sum(self, numbers: Tensor, lengths: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
        """Numbers [N, 2, W] from their lowest digit with lengths [N, 2, 1], as a+b: ids and keep [N, 2 W + 1]."""
        ids, keep = self._written(numbers, lengths, reverse)
        plus = torch.full_like(ids[:, 0, :1], PLUS)  # [N, 1]
        joined = torch.cat((ids[:, 0], plus, ids[:, 1]), dim=1)
        kept = torch.cat((keep[:, 0], plus == PLUS, keep[:, 1]), dim=1)
        order = kept.logical_not().byte().argsort(dim=1, stable=True)  # the padding between moves to the end
        return joined.gather(1, order), kept.gather(1, order)

    def _written(self, numbers: Tensor, lengths: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
        """Numbers [..., W] from their lowest digit with lengths [..., 1]: ids and keep [..., W]."""
        column = torch.arange(numbers.size(-1)).expand_as(numbers)
        digits = numbers if reverse else numbers.gather(-1, (lengths - 1 - column).clamp(min=0))
        return self.padded(ZERO + digits, lengths)


def _operands(source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The operands of questions [N, L] from their lowest digit, zero-padded: [N, 2, W]; and lengths [N, 2, 1]."""
    plus = (source == PLUS).long().argmax(dim=1, keepdim=True)  # [N, 1]
    ends = torch.stack((plus, keep.sum(dim=1, keepdim=True)), dim=1)  # [N, 2, 1]
    starts = torch.stack((torch.zeros_like(plus), plus + 1), dim=1)
    index = ends - 1 - torch.arange((source.size(1) - 1) // 2)  # [N, 2, W]
    digits = source[:, None].expand(-1, 2, -1).gather(2, index.clamp(min=0)) - ZERO
    return digits.masked_fill(index < starts, 0), ends - starts


def _add(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of numbers [N, 2, W]: digits [N, W + 1] from the lowest, and numbers of digits [N, 1]."""
    columns, carry = [], numbers.new_zeros(len(numbers))
    for column in numbers.sum(dim=1).unbind(dim=1):
        columns.append((column + carry) % 10)
        carry = (column + carry) // 10
    digits = torch.stack((*columns, carry), dim=1)
    counts = torch.arange(1, digits.size(1) + 1)
    return digits, (counts * (digits > 0)).amax(dim=1, keepdim=True).clamp(min=1)


@register("modular_addition")
@dataclass(kw_only=True)
class ModularAddition(Task):
    """5 95 -> 3, the sum modulo 97: for grokking (Power et al. 2022).

    All pairs of numbers are shuffled with a fixed seed. The first share is for training; the rest is halved into
    validation and test, of which at most validation_size and test_size are used.
    """

    symbol_option: ClassVar[str] = "modulus"

    modulus: Annotated[int, Interval(ge=2, le=8192)] = 97
    """Number of different numbers."""
    train_share: Annotated[float, Interval(gt=0.0, lt=1.0)] = 0.5
    """Share of all pairs for training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self._ends[0] < self._ends[1] < self.modulus**2:
            must = f"must leave some of the {self.modulus**2} pairs to each of training, validation and test"
            raise ConfigError(f"data.train_share {must}, got {self.train_share}")

    @property
    def _ends(self) -> tuple[int, int]:
        """Ends of training and of validation among the shuffled pairs."""
        pairs = self.modulus**2
        training = round(pairs * self.train_share)
        return training, training + (pairs - training) // 2

    @property
    def longest(self) -> tuple[int, int]:
        return 2, 1

    @cached_property
    def _parts(self) -> dict[Split, Tensor]:
        """The pairs of each split, as first * modulus + second."""
        order = torch.randperm(self.modulus**2, generator=base.generator(*b"modular_addition"))
        return dict(zip(SPLITS, order.tensor_split(self._ends), strict=True))

    def batch(self, generator: torch.Generator, size: int) -> Pairs:
        part = self._parts["training"]
        return self._pairs(part[torch.randint(len(part), (size,), generator=generator)])

    def examples(self, split: Split, limit: int | None = None) -> Pairs:
        return self._pairs(self._parts[split][: self.held_out(split, limit)])

    def _pairs(self, numbers: Tensor) -> Pairs:
        source = torch.stack((numbers // self.modulus, numbers % self.modulus), dim=1)
        target = source.sum(dim=1, keepdim=True) % self.modulus
        keep = torch.ones_like(source, dtype=torch.bool)
        return Pairs(FIRST_SYMBOL_ID + source, keep, FIRST_SYMBOL_ID + target, keep[:, :1])
