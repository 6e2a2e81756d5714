"""What an imported model can be asked, where no corpus came with it: to go on, to answer, to fill in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from minitx.data.examples import Examples, Kind
from minitx.data.splits import Split
from minitx.data.tasks.base import Task, check_at_least, register
from minitx.data.tasks.text import MaskedText, Text
from minitx.data.tasks.translation import Translation
from minitx.data.text.readers import Corpus
from minitx.data.tokenizers import Tokenizer

NO_DATA = "an imported model brings no data of its own"


@dataclass(kw_only=True)
class _NoCorpus(Text):
    """Running text that is somewhere else."""

    path: str = ""
    """The text to measure on; none came with the model."""

    @cached_property
    def _corpus(self) -> Corpus:
        if not self.path:
            raise ValueError(f"{NO_DATA}: give a text to measure it on (--path FILE)")
        return super()._corpus


@register("imported_text")
@dataclass(kw_only=True)
class ImportedText(_NoCorpus):
    """What an imported language model does: go on with a text."""


@register("imported_masked_text")
@dataclass(kw_only=True)
class ImportedMaskedText(_NoCorpus, MaskedText):
    """What an imported encoder does: tell hidden tokens."""


@register("imported_pairs")
@dataclass(kw_only=True)
class ImportedPairs(Task):
    """What an imported encoder-decoder does: write an answer to a text."""

    kind: ClassVar[Kind] = "pairs"

    max_tokens: int = 512
    """As far as an answer goes at most, unless its question is longer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("max_tokens", self.max_tokens, 1)

    def on_file(self, path: str) -> Task:
        """Questions and answers that somebody has, in columns named source and target."""
        return Translation(source="source", target="target", max_tokens=self.max_tokens).on_file(path)

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """Comes with the model."""
        raise ValueError(f"{NO_DATA}: train it on a task that does, --data.name (minitx list)")

    @property
    def longest(self) -> tuple[int, int]:
        """As long as the model was made for."""
        return self.max_tokens, self.max_tokens

    @property
    def aligned(self) -> bool:
        """Never: how long an answer is, is part of it."""
        return False

    def batch(self, generator: torch.Generator, size: int) -> Examples:
        """There is nothing to train on.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{NO_DATA}: train it on a task that does, --data.name (minitx list)")

    def examples(self, split: Split, limit: int | None = None) -> Examples:
        """There is nothing to measure on; see on_file.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{NO_DATA}: give questions and answers to measure it on (--path FILE.tsv)")
