"""The interface of every task, and the registry."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from minitx.config.errors import ConfigError
from minitx.config.registry import LazyRegistry, check_fields
from minitx.config.validation import MAX_SIZE, Size
from minitx.data import tokenizers
from minitx.data.examples import Examples, Kind
from minitx.data.splits import Split
from minitx.data.tokenizers import Tokenizer

MODULES = {
    "arithmetic": "addition modular_addition",
    "more_sequences": "copy_twice sort counting parity majority dyck",
    "languages": "number_words",
    "dates": "dates",
    "text": "text masked_text",
    "translation": "translation",
    "imported": "imported_text imported_masked_text imported_pairs",
    "markov": "markov",
    "recall": "induction associative_recall",
}
TASKS = LazyRegistry({name: f"{__package__}.{module}" for module, names in MODULES.items() for name in names.split()})
"""Tasks by data.name. A module of MODULES is imported when one of its tasks is requested."""

FIRST_SYMBOL_ID = len(tokenizers.SPECIAL_TOKENS)  # the id of a toy task's first symbol

register = TASKS.register
"""Decorator that makes a task available as data.name."""


def hash_seed(*numbers: int) -> int:
    """Hash integers to a seed below 2^64; similar integers give unrelated seeds (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state


def generator(*numbers: int) -> torch.Generator:
    """A random number generator that is a pure function of a few integers."""
    return torch.Generator().manual_seed(hash_seed(*numbers))


@dataclass(kw_only=True)
class Task:
    """The interface of every task; its fields are the options of the `data` section."""

    kind: ClassVar[Kind] = "pairs"
    """Kind of its examples."""
    separator: ClassVar[str] = ""
    """Text between the beginning of a running text and its continuation."""
    metrics: ClassVar[tuple[str, ...]] = ()
    """Scores of whole outputs, for answers with more than one valid wording: bleu, chrf (bleu.py)."""
    aligned: ClassVar[bool] = True
    """Whether answers are as long as their questions if `longest` is the same for both: all an encoder can predict."""
    capped: ClassVar[bool] = False
    """Whether an answer has at most `longest` symbols even if its question is longer."""
    length_option: ClassVar[str | None] = None
    """The option with the shortest and the longest question; a task without one has its own of_length."""
    shortest: ClassVar[int] = 0
    """Minimum of that option."""
    symbol_option: ClassVar[str] = "symbols"
    """The option with the number of symbols "0", "1", ...; a task without one has its own vocabulary."""
    evaluated_file = ""  # that of on_file, of which all is held out
    sampling = 2
    """Version of the sampling of training examples, stored in checkpoints: a resumed run keeps its own. In version 1
    held-out questions changed the distribution of lengths, and translation kept near-duplicates of held-out pairs."""

    batch_size: Size = 64
    """Number of examples in a batch."""
    validation_size: Size = 1000
    """Maximum number of examples in the validation set."""
    test_size: Size = 10_000
    """Maximum number of examples in the test set."""

    def __post_init__(self) -> None:
        """Check the options against their annotations; a subclass checks those that depend on one another."""
        check_fields(self, "data")
        if self.length_option:
            check_range(self.length_option, getattr(self, self.length_option), self.shortest)

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """The tokenizer; may be assigned, to use that of a checkpoint."""
        return tokenizers.symbols(range(getattr(self, self.symbol_option)))

    @property
    def longest(self) -> tuple[int, int]:
        """Maximum numbers of source and target symbols of an example; (0, T) for a stream."""
        raise NotImplementedError

    @property
    def reach(self) -> tuple[int, int]:
        """`longest` over held-out examples too, which may be longer if they are read from files."""
        return self.longest

    @property
    def trained_lengths(self) -> tuple[int, int] | None:
        """Shortest and longest question of training, in the unit of of_length; None without a length_option."""
        return getattr(self, self.length_option) if self.length_option else None

    @property
    def notes(self) -> list[str]:
        """Remarks about the data, printed when training starts."""
        return []

    @property
    def boundaries(self) -> list[int]:
        """The tokens after which coupled position ids restart, so that an answer has the ids of its question."""
        return [self.vocabulary.special.bos, self.vocabulary.special.sep]

    @property
    def final_split(self) -> Split:
        """The split that a finished run is evaluated on."""
        return "test"

    @property
    def floor(self) -> float | None:
        """The minimum loss of any model, in nats per token; None if it is not known."""
        return None

    def adopted(self, tokenizer: Tokenizer) -> Tokenizer | None:
        """The `vocabulary` for a checkpoint's tokenizer, to be set before examples are sampled; None for symbols."""
        return None

    def divide(self, question: list[int]) -> tuple[list[int], list[int]]:
        """The ids of a question that are read first, and those that are given inside the answer, IGNORE where the model
        predicts. By default all are read first, and none is given."""
        return question, []

    def on_file(self, path: str) -> "Task | None":
        """The same task on another file, for evaluation; None if examples are not read from files."""
        return None

    def batch(self, generator: torch.Generator, size: int) -> Examples:
        """Sample `size` training examples."""
        raise NotImplementedError

    def examples(self, split: Split, limit: int | None = None) -> Examples:
        """The fixed examples of a held-out split; with a limit at most that many, which may be others of the split."""
        raise NotImplementedError

    def sentences(self, split: Split, limit: int | None = None) -> list[tuple[str, str]]:
        """The same examples as pairs of question and answer text; for tasks with metrics."""
        raise NotImplementedError

    def held_out(self, split: Split, limit: int | None = None) -> int:
        """Number of examples requested of a split."""
        size = self.validation_size if split == "validation" else self.test_size
        return size if limit is None else min(size, limit)


def check_range(option: str, value: tuple[int, int], least: int, most: int = MAX_SIZE) -> None:
    """Raise a ConfigError that names the key unless a range is ascending and within limits."""
    if not least <= value[0] <= value[1] <= most:
        limits = f"{least} <= smallest <= largest <= {most}"
        raise ConfigError(f"data.{option} must be [smallest, largest] with {limits}, got {[*value]}")
