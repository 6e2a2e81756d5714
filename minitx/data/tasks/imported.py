"""Tasks of imported models, which have no corpus: to continue a text, to answer, to fill masks."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NoReturn

import torch

from minitx.config.errors import ConfigError
from minitx.config.validation import Size
from minitx.data.splits import Split
from minitx.data.tasks.base import Task, register
from minitx.data.tasks.text import MaskedText, Text
from minitx.data.tasks.translation import Translation
from minitx.data.text.readers import Corpus

NO_DATA = "an imported model brings no data of its own"
TRAIN_ELSEWHERE = f"{NO_DATA}: train it on a task that does, --data.name (minitx list)"


@register("imported_text")
@dataclass(kw_only=True)
class ImportedText(Text):
    """An imported language model: to continue a text."""

    path: str = ""
    """The text to evaluate on; an imported model has none."""

    @cached_property
    def _corpus(self) -> Corpus:
        if not self.path:
            raise ConfigError(f"{NO_DATA}: give a text to evaluate it on (--path FILE)")
        return super()._corpus


@register("imported_masked_text")
@dataclass(kw_only=True)
class ImportedMaskedText(ImportedText, MaskedText):
    """An imported encoder: to predict masked tokens."""


class CappedTranslation(Translation):
    """Pairs in a file: max_tokens is the maximum length of every answer, as the model generates it."""

    capped: ClassVar[bool] = True


@register("imported_pairs")
@dataclass(kw_only=True)
class ImportedPairs(Task):
    """An imported encoder-decoder: to answer a text."""

    aligned: ClassVar[bool] = False
    capped: ClassVar[bool] = True

    max_tokens: Size = 512
    """Maximum length of an answer."""

    def on_file(self, path: str) -> Task:
        """Questions and answers in columns named source and target."""
        return CappedTranslation(source="source", target="target", max_tokens=self.max_tokens).on_file(path)

    @cached_property
    def vocabulary(self) -> NoReturn:
        """Assigned from the model."""
        raise ConfigError(TRAIN_ELSEWHERE)

    @property
    def longest(self) -> tuple[int, int]:
        return self.max_tokens, self.max_tokens

    def batch(self, generator: torch.Generator, size: int) -> NoReturn:
        raise ConfigError(TRAIN_ELSEWHERE)

    def examples(self, split: Split, limit: int | None = None) -> NoReturn:
        raise ConfigError(f"{NO_DATA}: give questions and answers to evaluate it on (--path FILE.tsv)")
