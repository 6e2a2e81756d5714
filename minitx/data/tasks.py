"""Tasks: what there is to learn. A task knows its tokenizer and draws whole batches of ids; no model, no layout.

Legend: N examples, L symbols. To add a toy task, subclass SequenceTask, write `answer` and register it under the
name that goes into `data.name`; its fields are the options that YAML may set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from minitx.config import Options
from minitx.data import corpora, encoded, masking, tokenizers
from minitx.data.examples import Examples, Kind, Pairs, Stream
from minitx.data.splits import Split, draw_split
from minitx.data.tokenizers import TOKENIZERS, Tokenizer
from minitx.options import build

if TYPE_CHECKING:
    import numpy as np

TASKS: dict[str, type[Task]] = {}
"""Every task by its name in the YAML."""

TaskClass = TypeVar("TaskClass", bound="type[Task]")


def register(name: str) -> Callable[[TaskClass], TaskClass]:
    """Make a task available as data.name."""

    def add(task: TaskClass) -> TaskClass:
        TASKS[name] = task
        return task

    return add


def mixed(*numbers: int) -> int:
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
    return torch.Generator().manual_seed(mixed(*numbers))


@dataclass(kw_only=True)
class Task:
    """What every task has."""

    kind: ClassVar[Kind] = "pairs"
    """What it yields."""

    batch_size: int = 64
    """Examples in one batch."""
    validation_size: int = 1000
    """Examples in the validation set, at most."""
    test_size: int = 10_000
    """Examples in the test set, at most."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "validation_size", "test_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name} must be at least 1, got {getattr(self, name)}")

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """The tokenizer; assign it to use one from a checkpoint."""
        raise NotImplementedError

    @property
    def longest(self) -> tuple[int, int]:
        """The most source and target symbols that an example can have; (0, T) for a stream."""
        raise NotImplementedError

    @property
    def boundaries(self) -> list[int]:
        """The tokens after which coupled position ids count anew: an answer's ids are its question's."""
        return [self.vocabulary.special.bos, self.vocabulary.special.sep]

    @property
    def final_split(self) -> Split:
        """What a finished run is measured on."""
        return "test"

    def batch(self, generator: torch.Generator, size: int) -> Examples:
        """Draw `size` training examples at once."""
        raise NotImplementedError

    def examples(self, split: Split, limit: int | None = None) -> Examples:
        """The fixed examples of a held-out split, always the same; the first or evenly spread `limit` of them.

        Raises:
            ValueError: this task has no such split.
        """
        raise NotImplementedError


@dataclass(kw_only=True)
class SequenceTask(Task):
    """A sequence of random symbols as the question, some function of it as the answer."""

    symbols: int = 10
    """Number of different symbols: "0", "1", ..."""
    length: tuple[int, int] = (1, 16)
    """Shortest and longest question, both included; every length is equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.symbols < 1:
            raise ValueError(f"data.symbols must be at least 1, got {self.symbols}")
        shortest, longest = self.length
        if not 1 <= shortest <= longest:
            raise ValueError(
                f"data.length must be [shortest, longest] with 1 <= shortest <= longest, got {[*self.length]}"
            )

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The answers to questions: ids and keep [N, L] to the answers' ids and keep [N, T]."""
        raise NotImplementedError

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """Symbols separated by spaces."""
        return tokenizers.symbols([str(symbol) for symbol in range(self.symbols)])

    @property
    def longest(self) -> tuple[int, int]:
        """An answer is as long as its question."""
        return self.length[1], self.length[1]

    def of_length(self, length: int) -> SequenceTask:
        """The same task with questions of one length only."""
        return dataclasses.replace(self, length=(length, length))

    def batch(self, generator: torch.Generator, size: int) -> Pairs:
        """Draw training examples: never one that is held out."""
        return self._draw(generator, size, "training", distinct=False)

    def examples(self, split: Split, limit: int | None = None) -> Pairs:
        """Distinct held-out examples, drawn under the split's own seed."""
        size = self.validation_size if split == "validation" else self.test_size
        size = size if limit is None else min(size, limit)
        return self._draw(generator(*split.encode()), size, split, distinct=True)

    def _draw(self, generator: torch.Generator, size: int, split: Split, distinct: bool) -> Pairs:
        first = len(tokenizers.SPECIAL_TOKENS)
        shortest, longest = self.length

        def draw(rows: int) -> tuple[Tensor, Tensor]:
            lengths = torch.randint(shortest, longest + 1, (rows, 1), generator=generator)
            ids = torch.randint(first, first + self.symbols, (rows, longest), generator=generator)
            keep = torch.arange(longest) < lengths  # [N, L]
            return ids.masked_fill(~keep, self.vocabulary.special.pad), keep

        source, keep = draw_split(draw, size, split, distinct)
        return Pairs(source, keep, *self.answer(source, keep))


@register("copy")
@dataclass(kw_only=True)
class Copy(SequenceTask):
    """3 1 4 -> 3 1 4."""

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The question itself."""
        return source, keep


@register("reverse")
@dataclass(kw_only=True)
class Reverse(SequenceTask):
    """3 1 4 -> 4 1 3."""

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Place t of the answer is place length - 1 - t of the question."""
        places = keep.sum(dim=1, keepdim=True) - 1 - torch.arange(source.size(1))  # [N, L]
        return source.gather(1, places.clamp(min=0)).masked_fill(~keep, self.vocabulary.special.pad), keep


@register("text")
@dataclass(kw_only=True)
class Text(Task):
    """Language modelling on running text: "the cat sa" -> "t"."""

    kind: ClassVar[Kind] = "stream"

    path: str = "python_code"
    """A text file, a folder of .txt files, owner/name on the hub, or a named corpus (minitx list)."""
    tokenizer: Options = field(default_factory=lambda: {"name": "char"})
    """How text becomes tokens: a registered `name` and its own options."""
    block: int = 128
    """Tokens that the model sees at once."""
    validation_share: float = 0.1
    """Share of the text, at its end, that is held out for validation."""
    test_share: float = 0.0
    """Share of the text, before that, that is held out for a test."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block < 1:
            raise ValueError(f"data.block must be at least 1, got {self.block}")
        for name in ("validation_share", "test_share"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"data.{name} must lie in [0, 1), got {getattr(self, name)}")
        if self.validation_share + self.test_share >= 1.0:
            raise ValueError("data.validation_share and data.test_share leave nothing for training")

    @cached_property
    def _table(self) -> Any:
        return corpora.load(self.path)

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """Trained on the whole text, so that no held-out character is unknown."""
        trainer = build(TOKENIZERS, self.tokenizer, "data.tokenizer")
        return trainer.train(rows["text"] for rows in self._table.iter(batch_size=encoded.ROWS_AT_ONCE))

    @cached_property
    def _parts(self) -> dict[Split, np.ndarray]:
        """The ids of each split."""
        ids = encoded.encode(self._table, self.vocabulary)
        end = int(len(ids) * (1 - self.validation_share))
        start = end - int(len(ids) * self.test_share)
        parts: dict[Split, np.ndarray] = {
            "training": ids[:start],
            "test": ids[start:end],
            "validation": ids[end:],
        }
        if len(parts["training"]) <= self.block:
            raise ValueError(
                f"data.block: {self.path} holds {len(parts['training'])} tokens for training, fewer than one block of "
                f"{self.block} and the token after it; use a longer text or a smaller data.block"
            )
        return parts

    @property
    def longest(self) -> tuple[int, int]:
        """One block."""
        return 0, self.block

    @property
    def final_split(self) -> Split:
        """The whole validation text where no part was set aside for a test."""
        return "test" if self.test_share else "validation"

    def batch(self, generator: torch.Generator, size: int) -> Examples:
        """Blocks from random places."""
        ids = self._parts["training"]
        starts = torch.randint(0, len(ids) - self.block, (size,), generator=generator).numpy()
        return Stream(_blocks(ids, starts, self.block))

    def examples(self, split: Split, limit: int | None = None) -> Examples:
        """The whole held-out text, cut into blocks that do not overlap; or `limit` of them, evenly spread."""
        import numpy as np

        ids = self._parts[split]
        if len(ids) < 2:
            raise ValueError(f"data.{split}_share leaves no text for {split}; make it larger than 0")
        starts = np.arange(0, len(ids) - 1, self.block)
        if limit is not None and limit < len(starts):
            starts = starts[np.linspace(0, len(starts) - 1, limit).astype(int)]
        padding = np.full(self.block, self.vocabulary.special.pad, dtype=ids.dtype)  # after the end of the text
        return Stream(_blocks(np.concatenate((ids, padding)), starts, self.block))


@register("masked_text")
@dataclass(kw_only=True)
class MaskedText(Text):
    """Masked language modelling: "the c<mask>t sat" -> "a" in its place."""

    kind: ClassVar[Kind] = "masked"

    mask_share: float = 0.15
    """Probability with which a token is to be predicted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.mask_share < 1.0:
            raise ValueError(f"data.mask_share must lie between 0 and 1, got {self.mask_share}")

    @property
    def longest(self) -> tuple[int, int]:
        """One block, on either side."""
        return self.block, self.block

    def batch(self, generator: torch.Generator, size: int) -> Examples:
        """Blocks from random places, tokens hidden at random."""
        return self._hide(super().batch(generator, size), generator)

    def examples(self, split: Split, limit: int | None = None) -> Examples:
        """Blocks as for running text, with the same tokens hidden each time."""
        return self._hide(super().examples(split, limit), generator(*split.encode()))

    def _hide(self, stream: Examples, generator: torch.Generator) -> Examples:
        vocabulary = self.vocabulary
        return masking.hide(stream[0][:, :-1], vocabulary.special, vocabulary.vocab_size, self.mask_share, generator)


def _blocks(ids: np.ndarray, starts: np.ndarray, block: int) -> Tensor:
    """ids[start : start + block + 1] for each start, [N, T + 1]."""
    import numpy as np

    return torch.from_numpy(ids[starts[:, None] + np.arange(block + 1)].astype(np.int64))
