"""What every task has, and what tasks of questions and answers share: who is held out, how lengths are drawn.

Legend: N examples, L symbols of the question, T symbols of the answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self, TypeVar

import torch
from torch import Tensor

from minitx.config.registry import LazyRegistry
from minitx.data import tokenizers
from minitx.data.examples import Examples, Kind, Pairs
from minitx.data.splits import Split, draw_split
from minitx.data.tokenizers import Tokenizer

TASKS = LazyRegistry(
    {
        "minitx.data.tasks.arithmetic": {"addition": "Addition", "modular_addition": "ModularAddition"},
        "minitx.data.tasks.languages": {"number_words": "NumberWords"},
        "minitx.data.tasks.dates": {"dates": "Dates"},
        "minitx.data.tasks.text": {"text": "Text", "masked_text": "MaskedText"},
        "minitx.data.tasks.translation": {"translation": "Translation"},
        "minitx.data.tasks.imported": {
            "imported_text": "ImportedText",
            "imported_masked_text": "ImportedMaskedText",
            "imported_pairs": "ImportedPairs",
        },
        "minitx.data.tasks.markov": {"markov": "Markov"},
        "minitx.data.tasks.recall": {"induction": "Induction", "associative_recall": "AssociativeRecall"},
        "minitx.data.tasks.sequences": {
            "copy": "Copy",
            "reverse": "Reverse",
            "copy_twice": "CopyTwice",
            "sort": "Sort",
            "parity": "Parity",
            "dyck": "Dyck",
        },
    }
)
"""Every task by its name in the YAML; a module is imported when one of its tasks is first asked for."""

MOST = 2**20
"""The largest vocabulary, batch, set or length of a task: more is a slip of the keyboard, and would fill the memory."""

FIRST = len(tokenizers.SPECIAL_TOKENS)
"""The id of a toy task's first symbol."""

TaskClass = TypeVar("TaskClass", bound="type[Task]")


def register(name: str) -> Callable[[TaskClass], TaskClass]:
    """Make a task available as data.name."""

    def add(task: TaskClass) -> TaskClass:
        TASKS[name] = task
        return task

    return add


def hash_seed(*numbers: int) -> int:
    """One number below 2^64 from a few, so that neighbours give unrelated ones (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state


def generator(*numbers: int) -> torch.Generator:
    """Random numbers that are a pure function of a few integers."""
    return torch.Generator().manual_seed(hash_seed(*numbers))


@dataclass(kw_only=True)
class Task:
    """What every task has."""

    kind: ClassVar[Kind] = "pairs"
    """What it yields."""
    separator: ClassVar[str] = ""
    """What stands between the beginning of a running text and how it goes on."""
    metrics: ClassVar[tuple[str, ...]] = ()
    """Scores of what a model writes as a whole, for answers that may be worded otherwise: bleu, chrf (bleu.py)."""

    batch_size: int = 64
    """Examples in one batch."""
    validation_size: int = 1000
    """Examples in the validation set, at most."""
    test_size: int = 10_000
    """Examples in the test set, at most."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "validation_size", "test_size"):
            check_at_least(name, getattr(self, name), 1, MOST)

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """The tokenizer; assign it to use one from a checkpoint."""
        raise NotImplementedError

    @property
    def longest(self) -> tuple[int, int]:
        """The most source and target symbols that an example can have; (0, T) for a stream."""
        raise NotImplementedError

    @property
    def reach(self) -> tuple[int, int]:
        """The same for every example there is; differs from longest where held-out ones in files are longer."""
        return self.longest

    @property
    def trained_lengths(self) -> tuple[int, int] | None:
        """Shortest and longest question of training, in the unit of of_length; None where there is no such unit."""
        return None

    @property
    def notes(self) -> list[str]:
        """Sentences about the data that whoever trains should read."""
        return []

    @property
    def aligned(self) -> bool:
        """Whether every answer is as long as its question, so that an encoder alone can give it place by place."""
        return self.longest[0] == self.longest[1]

    @property
    def boundaries(self) -> list[int]:
        """The tokens after which coupled position ids count anew: an answer's ids are its question's."""
        return [self.vocabulary.special.bos, self.vocabulary.special.sep]

    @property
    def final_split(self) -> Split:
        """What a finished run is measured on."""
        return "test"

    @property
    def floor(self) -> float | None:
        """The loss that no model can beat, in nats per token, where it is known."""
        return None

    @property
    def caseless(self) -> bool:
        """Whether answers are written in lower case only, and compared so."""
        return False

    def takes(self, tokenizer: Tokenizer) -> bool:
        """Whether this tokenizer may be assigned to `vocabulary` before any example is drawn: for text, not symbols."""
        return False

    def on_file(self, path: str) -> Task | None:
        """The same task on another file, to measure on; None where examples are not read from files."""
        return None

    def batch(self, generator: torch.Generator, size: int) -> Examples:
        """Draw `size` training examples at once."""
        raise NotImplementedError

    def examples(self, split: Split, limit: int | None = None) -> Examples:
        """The fixed examples of a held-out split, always the same; the first or evenly spread `limit` of them.

        Raises:
            ValueError: this task has no such split.
        """
        raise NotImplementedError

    def sentences(self, split: Split, limit: int | None = None) -> list[tuple[str, str]]:
        """The same examples as texts, questions with their answers; for tasks with metrics."""
        raise NotImplementedError

    def held_out(self, split: Split, limit: int | None = None) -> int:
        """How many examples of a split are asked for."""
        size = self.validation_size if split == "validation" else self.test_size
        return size if limit is None else min(size, limit)


@dataclass(kw_only=True)
class QuestionTask(Task):
    """A random question, some function of it as the answer; a hash of the question decides whether it is held out."""

    enlarge: ClassVar[str] = "data.symbols or data.length"
    """The options to make larger when there are too few different questions."""
    has_lengths: ClassVar[bool] = True
    """Whether questions of one length can be asked for, of_length."""

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Draw questions: ids and keep, each [N, L]."""
        raise NotImplementedError

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The answers to questions: ids and keep [N, L] to the answers' ids and keep [N, T]."""
        raise NotImplementedError

    def of_length(self, length: int) -> Self:
        """The same task with questions of one length only.

        Raises:
            ValueError: no question is that long.
        """
        raise NotImplementedError

    def batch(self, generator: torch.Generator, size: int) -> Pairs:
        """Draw training examples: never one that is held out."""
        return self._draw(generator, size, "training", distinct=False)

    def examples(self, split: Split, limit: int | None = None) -> Pairs:
        """Distinct held-out examples, drawn under the split's own seed."""
        return self._draw(generator(*split.encode()), self.held_out(split, limit), split, distinct=True)

    def answered(self, source: Tensor, keep: Tensor) -> Pairs:
        """Questions [N, L] with their answers; the place to write a question otherwise than it is told apart."""
        return Pairs(source, keep, *self.answer(source, keep))

    def deciding(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The part of questions [N, L] that decides on the split, [N, K]; by default the whole question."""
        return source, keep

    def padded(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The first lengths [N, 1] of ids [N, L], padding after them: ids and keep."""
        keep = torch.arange(ids.size(1)) < lengths  # [N, L]
        return torch.where(keep, ids, self.vocabulary.special.pad), keep

    def _draw(self, generator: torch.Generator, size: int, split: Split, distinct: bool) -> Pairs:
        source, keep = draw_split(
            lambda rows: self.question(generator, rows), size, split, distinct, self.enlarge, self.deciding
        )
        return self.answered(source, keep)


@dataclass(kw_only=True)
class LengthTask(QuestionTask):
    """A question of random length."""

    shortest: ClassVar[int] = 1
    """The shortest question there is."""

    length: tuple[int, int] = (1, 16)
    """Shortest and longest question, both included; every length is equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("length", self.length, self.shortest)

    @property
    def longest(self) -> tuple[int, int]:
        """An answer is as long as its question."""
        return self.length[1], self.length[1]

    @property
    def trained_lengths(self) -> tuple[int, int]:
        """data.length."""
        return self.length

    def of_length(self, length: int) -> Self:
        """The same task with questions of one length only."""
        return dataclasses.replace(self, length=(length, length))

    def draw_lengths(self, generator: torch.Generator, rows: int) -> Tensor:
        """Lengths of questions, [N, 1]."""
        shortest, longest = self.length
        return torch.randint(shortest, longest + 1, (rows, 1), generator=generator)

    def draw_symbols(self, generator: torch.Generator, rows: int, symbols: int) -> tuple[Tensor, Tensor]:
        """Strings of random symbols: ids and keep, each [N, L]."""
        lengths, longest = self.draw_lengths(generator, rows), self.length[1]
        ids = torch.randint(FIRST, FIRST + symbols, (rows, longest), generator=generator)
        return self.padded(ids, lengths)


@dataclass(kw_only=True)
class SequenceTask(LengthTask):
    """A sequence of random symbols as the question, some function of it as the answer."""

    symbols: int = 10
    """Number of different symbols: "0", "1", ..."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("symbols", self.symbols, 1, MOST)

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """Symbols separated by spaces."""
        return numbered(self.symbols)

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Any string is as likely as any other of its length."""
        return self.draw_symbols(generator, rows, self.symbols)


def numbered(symbols: int) -> Tokenizer:
    """The tokenizer of the symbols "0", "1", ..., separated by spaces."""
    return tokenizers.symbols([str(symbol) for symbol in range(symbols)])


def check_at_least(name: str, value: int, least: int, most: int | None = None) -> None:
    """Refuse a number that is too small, or larger than anything that could be meant.

    Raises:
        ValueError: with the key.
    """
    if value < least:
        raise ValueError(f"data.{name} must be at least {least}, got {value}")
    if most is not None and value > most:
        raise ValueError(f"data.{name} must be at most {most:,}, got {value}")


def check_range(name: str, value: tuple[int, int], least: int) -> None:
    """Refuse what is no range of sizes.

    Raises:
        ValueError: with the key.
    """
    shortest, longest = value
    if not least <= shortest <= longest:
        raise ValueError(f"data.{name} must be [shortest, longest] with {least} <= shortest <= longest, got {[*value]}")
    check_at_least(name, longest, least, MOST)
