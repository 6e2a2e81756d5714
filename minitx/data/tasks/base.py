"""Base classes of tasks: the interface of all, and splits and lengths of tasks with questions and answers.

Legend: N examples, L symbols of the question, T symbols of the answer.
"""

import dataclasses
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.registry import LazyRegistry, check_fields
from minitx.config.schema import MAX_SIZE, Size
from minitx.data import tokenizers
from minitx.data.examples import Examples, Kind, Pairs
from minitx.data.splits import SHARES, Split, content_hash, in_split, matched
from minitx.data.tokenizers import Tokenizer

TASKS = LazyRegistry(
    {
        "minitx.data.tasks.arithmetic": {"addition": "Addition", "modular_addition": "ModularAddition"},
        "minitx.data.tasks.formal_languages": {"parity": "Parity", "majority": "Majority", "dyck": "Dyck"},
        "minitx.data.tasks.more_sequences": {"copy_twice": "CopyTwice", "sort": "Sort"},
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
    }
)
"""Tasks by data.name. A module in this table is imported when one of its tasks is first requested."""

FIRST_SYMBOL_ID = len(tokenizers.SPECIAL_TOKENS)  # the id of a toy task's first symbol

MAX_FRUITLESS_SAMPLES = 20  # samples in a row without a new example, after which a split counts as exhausted
FRUITLESS_SAMPLES = 3  # after which the planned strata count as exhausted
MIN_SAMPLE = 256  # questions, of which small batches rarely need a second sample

TaskClass = TypeVar("TaskClass", bound="type[Task]")


def register(name: str) -> Callable[[TaskClass], TaskClass]:
    """Decorator that makes a task available as data.name."""

    def add(task: TaskClass) -> TaskClass:
        TASKS[name] = task
        return task

    return add


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
    """Of its examples."""
    separator: ClassVar[str] = ""
    """Between the beginning of a running text and its continuation."""
    metrics: ClassVar[tuple[str, ...]] = ()
    """Scores of whole outputs, for answers with more than one valid wording: bleu, chrf (bleu.py)."""
    aligned: ClassVar[bool] = True
    """Whether an answer is as long as its question wherever `longest` is the same for both. An encoder alone can only
    predict such answers."""
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

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """The tokenizer; may be assigned, to use that of a checkpoint."""
        raise NotImplementedError

    @property
    def longest(self) -> tuple[int, int]:
        """Maximum numbers of source and target symbols of an example; (0, T) for a stream."""
        raise NotImplementedError

    @property
    def reach(self) -> tuple[int, int]:
        """`longest` over held-out examples too, which may be longer where they come from files."""
        return self.longest

    @property
    def trained_lengths(self) -> tuple[int, int] | None:
        """Shortest and longest question of training, in the unit of of_length; None where of_length does not apply."""
        return None

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
        """The minimum loss of any model, in nats per token, where it is known."""
        return None

    @property
    def caseless(self) -> bool:
        """Whether answers are generated and compared in lower case."""
        return False

    def takes(self, tokenizer: Tokenizer) -> bool:
        """Whether a tokenizer may be assigned to `vocabulary` before any example is sampled: text only, not symbols."""
        return False

    def divide(self, question: list[int]) -> tuple[list[int], list[int]]:
        """The ids of a question that are read first, and those that are given inside the answer, IGNORE where the model
        predicts. By default all are read first, and none is given."""
        return question, []

    def on_file(self, path: str) -> "Task | None":
        """The same task on another file, for evaluation; None where examples are not read from files."""
        return None

    def batch(self, generator: torch.Generator, size: int) -> Examples:
        """Sample `size` training examples."""
        raise NotImplementedError

    def examples(self, split: Split, limit: int | None = None) -> Examples:
        """The fixed examples of a held-out split; with a limit the first, or evenly spread, `limit` of them."""
        raise NotImplementedError

    def sentences(self, split: Split, limit: int | None = None) -> list[tuple[str, str]]:
        """The same examples as pairs of question and answer text; for tasks with metrics."""
        raise NotImplementedError

    def held_out(self, split: Split, limit: int | None = None) -> int:
        """Number of examples requested of a split."""
        size = self.validation_size if split == "validation" else self.test_size
        return size if limit is None else min(size, limit)


@dataclass(kw_only=True)
class QuestionTask(Task):
    """Random questions with a function of the question as answer; a hash of the question decides its split."""

    enlarge: ClassVar[str] = "data.symbols or data.length"
    """The options to increase when there are too few different questions."""
    has_lengths: ClassVar[bool] = True
    """Whether of_length applies, and the splits have the lengths of all questions."""
    length_option: ClassVar[str | None] = None
    """The option with the shortest and the longest question; where there is none, a task has its own of_length."""

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Sample questions: ids and keep, each [N, L]."""
        raise NotImplementedError

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Answers to questions: from ids and keep [N, L] to ids and keep [N, T]."""
        raise NotImplementedError

    @property
    def trained_lengths(self) -> tuple[int, int] | None:
        """The value of the option that length_option names."""
        return getattr(self, self.length_option) if self.length_option else None

    def of_length(self, length: int) -> Self:
        """The same task with questions of one length only; raises ConfigError where no question is that long."""
        if self.length_option is None:
            raise NotImplementedError
        changes: dict[str, Any] = {self.length_option: (length, length)}
        return dataclasses.replace(self, **changes)

    def batch(self, generator: torch.Generator, size: int) -> Pairs:
        """Sample training examples, none of them held out."""
        return self.sample(generator, size, "training", distinct=False)

    def examples(self, split: Split, limit: int | None = None) -> Pairs:
        """Distinct held-out examples, sampled with the split's own seed. Lengths are distributed as in training, but a
        length with fewer questions has only these, and makes the set smaller."""
        return self.sample(generator(*split.encode()), self.held_out(split, limit), split, distinct=True)

    def answered(self, source: Tensor, keep: Tensor) -> Pairs:
        """Questions [N, L] with their answers; override it to write questions in another form."""
        return Pairs(source, keep, *self.answer(source, keep))

    def deciding(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The part [N, K] of questions [N, L] that decides their split; by default the whole question."""
        return source, keep

    def strata(self, source: Tensor, keep: Tensor) -> Tensor:
        """The stratum of each question, int64 [N]; its share is the same in every split. By default its length."""
        return keep.sum(dim=1)

    def padded(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Replace ids [..., L] after the first lengths [..., 1] by padding: ids and keep."""
        keep = torch.arange(ids.size(-1)) < lengths  # [..., L]
        return torch.where(keep, ids, self.vocabulary.special.pad), keep

    def sample(self, generator: torch.Generator, size: int, split: Split, distinct: bool) -> Pairs:
        """Sample until `size` examples of a split are found; distinct ones may be fewer, if there are no more.

        The strata of the first questions sampled, of any split, are the plan; each is filled with a question of the
        split. Where a stratum has none, or no more, another is planned; in all, a distinct set plans its full size.
        """
        found: list[tuple[Tensor, Tensor]] = []
        seen: set[int] = set()
        plan = torch.empty(0, dtype=torch.long)
        left = max(size, self.held_out(split)) if distinct else sys.maxsize  # strata that may still be planned
        stratified = self.has_lengths and self.sampling > 1
        fruitless = 0
        while size and fruitless < MAX_FRUITLESS_SAMPLES and (len(plan) or left):
            rows = int(size / SHARES[split] * 1.1) + 16
            if stratified:
                rows = max(MIN_SAMPLE, int((size + math.isqrt(100 * size)) / SHARES[split]))
            ids, keep = self.question(generator, rows)
            strata = self.strata(ids, keep) if stratified else torch.zeros(rows, dtype=torch.long)
            if not len(plan):
                plan = strata[: min(rows if fruitless else size, left)]
                left -= len(plan)
            chosen = in_split(content_hash(*self.deciding(ids, keep)), split).nonzero()[:, 0]
            if distinct:
                new: dict[int, int] = {}  # the first row of each hash that was not seen before
                for row, value in zip(chosen.tolist(), content_hash(ids[chosen], keep[chosen]).tolist(), strict=True):
                    if value not in seen:
                        new.setdefault(value, row)
                chosen = torch.tensor([*new.values()], dtype=torch.long)
            match = matched(plan, strata[chosen])
            chosen = chosen[match[match >= 0]][:size]
            found.append((ids.index_select(0, chosen), keep.index_select(0, chosen)))
            seen.update(content_hash(*found[-1]).tolist() if distinct else ())
            size -= len(chosen)
            fruitless = 0 if len(chosen) else fruitless + 1
            exhausted = fruitless and fruitless % FRUITLESS_SAMPLES == 0
            plan = plan[match < 0][: 0 if exhausted else size]
        if not any(len(ids) for ids, _ in found) or (not distinct and size):
            raise ConfigError(
                f"data: this task has too few different examples to hold any out for {split}; "
                f"make {self.enlarge} larger"
            )
        ids, keep = found[0] if len(found) == 1 else (torch.cat(parts) for parts in zip(*found, strict=True))
        return self.answered(ids, keep)


@dataclass(kw_only=True)
class LengthTask(QuestionTask):
    """Questions of random length."""

    length_option: ClassVar[str | None] = "length"
    shortest: ClassVar[int] = 1
    """Minimum of data.length."""

    length: tuple[int, int] = (1, 16)
    """Shortest and longest question, both included; all lengths are equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("length", self.length, self.shortest)

    @property
    def longest(self) -> tuple[int, int]:
        """An answer is as long as its question."""
        return self.length[1], self.length[1]

    def sample_lengths(self, generator: torch.Generator, rows: int) -> Tensor:
        """Sample lengths of questions, [N, 1]."""
        shortest, longest = self.length
        return torch.randint(shortest, longest + 1, (rows, 1), generator=generator)

    def sample_strings(self, generator: torch.Generator, rows: int, symbols: int) -> tuple[Tensor, Tensor]:
        """Sample strings of random symbols: ids and keep, each [N, L]."""
        lengths = self.sample_lengths(generator, rows)
        ids = torch.randint(symbols, (rows, self.length[1]), generator=generator)
        return self.padded(FIRST_SYMBOL_ID + ids, lengths)


@dataclass(kw_only=True)
class SequenceTask(LengthTask):
    """Sequences of random symbols, with a function of the sequence as answer."""

    symbols: Size = 10
    """Number of different symbols: "0", "1", ..."""

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """Symbols separated by spaces."""
        return numbered(self.symbols)

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Strings of one length are equally likely."""
        return self.sample_strings(generator, rows, self.symbols)


def numbered(symbols: int) -> Tokenizer:
    """The tokenizer of the symbols "0", "1", ..., separated by spaces."""
    return tokenizers.symbols([str(symbol) for symbol in range(symbols)])


def check_range(option: str, value: tuple[int, int], least: int, most: int = MAX_SIZE) -> None:
    """Raise a ConfigError that names the key unless a range is ascending and within limits."""
    if not least <= value[0] <= value[1] <= most:
        raise ConfigError(
            f"data.{option} must be [smallest, largest] with {least} <= smallest <= largest <= {most}, got {[*value]}"
        )
