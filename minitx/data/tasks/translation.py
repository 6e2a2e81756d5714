"""Translation, from pairs of sentences in files, in batches of about equal lengths, so that padding is rare."""

import dataclasses
import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.registry import build
from minitx.config.schema import Options
from minitx.config.validation import Size
from minitx.data.examples import Pairs
from minitx.data.splits import Split
from minitx.data.tasks.base import Task, register
from minitx.data.text import parallel_files
from minitx.data.text.flat_rows import FlatRows
from minitx.data.text.parallel_files import TextPairs
from minitx.data.text.tokenizer_training import TOKENIZERS, lower, lowercased
from minitx.data.tokenizers import Tokenizer

PAIRS_AT_ONCE = 1000  # pairs of sentences passed to a tokenizer's trainer at once


@register("translation")
@dataclass(kw_only=True)
class Translation(Task):
    """Ein Hund rennt. -> A dog runs.

    Validation and test are the pairs of their files, in order, without those with an empty side. A training pair is
    left out if either sentence occurs in validation or test, apart from case, punctuation and spacing. A batch is
    sampled, with replacement, among pairs of about the same length; over many batches all pairs are equally likely.
    """

    metrics: ClassVar[tuple[str, ...]] = ("bleu", "chrf")
    aligned: ClassVar[bool] = False

    path: str = "data/multi30k"
    """The folder of the files."""
    source: str = "de"
    """The source language: the suffix of its files (train.de), or its column."""
    target: str = "en"
    """The target language, likewise."""
    training: str = "train"
    """Name of the training files without the language, or of one file with both: .tsv, .csv (named columns), .jsonl."""
    validation: str = "val"
    """The same for validation."""
    test: str | None = "test"
    """The same for the test; null if there is none: a finished run is then evaluated on validation."""
    tokenizer: Options = field(default_factory=lambda: {"name": "bpe", "size": 8000})
    """A registered tokenizer `name` and its own options. One for both languages, trained on the training pairs."""
    lowercase: bool = False
    """Lowercase source and target."""
    max_tokens: Size = 100
    """Maximum length of a sentence in training; longer ones are kept in validation and test. Also the maximum length of
    a translation, unless its sentence is longer."""
    buckets: Size = 40
    """Number of groups of about equal length in the training pairs; fewer if a group would be smaller than a batch.
    1 mixes all lengths in a batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source == self.target:
            raise ConfigError(f"data.source and data.target must be two languages, both are {self.source}")
        self._files: dict[Split, TextPairs] = {}

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """Trained on both sides of the training pairs only."""
        trained = build(TOKENIZERS, self.tokenizer, "data.tokenizer").train(self._training_texts())
        return lowercased(trained) if self.lowercase else trained

    def adopted(self, tokenizer: Tokenizer) -> Tokenizer:
        return lowercased(tokenizer) if self.lowercase else tokenizer

    def on_file(self, path: str) -> Self:
        """The same task on other pairs, in one file with the columns that source and target name."""
        file = Path(path)
        if file.suffix.lower() not in parallel_files.TABLE_SUFFIXES:
            columns = f"with the columns {self.source} and {self.target}, got {path}"
            suffixes = ", ".join(parallel_files.TABLE_SUFFIXES)
            raise ConfigError(f"--path must be one file of pairs, {suffixes}, {columns}")
        other = dataclasses.replace(self, path=str(file.parent), validation=file.name, test=file.name)
        other.evaluated_file = path
        return other

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all pairs, for --resume."""
        digest, pairs = hashlib.sha256(), [self._read(split) for split in ("training", *self._held_out)]
        for part in json.JSONEncoder().iterencode(pairs):  # one text of all would take more memory than the pairs
            digest.update(part.encode())
        return f"-{digest.hexdigest()[:32]}"

    @property
    def longest(self) -> tuple[int, int]:
        """data.max_tokens; needs no file."""
        return self.max_tokens, self.max_tokens

    @property
    def reach(self) -> tuple[int, int]:
        """Held-out sentences may be longer."""
        sides = zip(*(self._rows(self._complete(split)) for split in self._held_out), strict=True)
        source, target = (max(self.max_tokens, *(int(rows.lengths.max()) for rows in side)) for side in sides)
        return source, target

    @property
    def final_split(self) -> Split:
        return self._held_out[-1]

    @property
    def notes(self) -> list[str]:
        """Numbers of pairs left out; of another file than the config's, only those with an empty side."""
        if self.evaluated_file:
            empty = len(self._read(self.final_split)) - len(self._complete(self.final_split))
            return [f"left out: {empty:,} with an empty side"] if empty else []
        pairs, kept, complete = len(self._pairs[0]), len(self._training), len(self._complete("training"))
        exact = len(self._without_held_out(_with_single_spaces))
        reasons = {
            "with an empty side": len(self._read("training")) - complete,
            "with a sentence of validation or test": complete - exact,
            "that differ from one of validation or test in punctuation or spacing only": exact - kept,
            f"longer than data.max_tokens {self.max_tokens}": kept - pairs,
        }
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        notes = [f"{pairs:,} pairs to train on" + (f"; left out: {left_out}" if left_out else "")]
        for split in self._held_out:
            empty = len(self._read(split)) - len(self._complete(split))
            notes += [f"left out of {split}: {empty:,} with an empty side"] if empty else []
        return notes

    def batch(self, generator: torch.Generator, size: int) -> Pairs:
        order, borders = self._buckets
        # A pair sampled among all pairs determines the bucket, so a bucket's probability is its share of the pairs.
        pair = torch.randint(len(order), (1,), generator=generator)
        bucket = int(torch.searchsorted(borders, pair, right=True)) - 1
        first, last = borders[bucket : bucket + 2].tolist()
        return self._padded(self._pairs, order[torch.randint(first, last, (size,), generator=generator)])

    def examples(self, split: Split, limit: int | None = None) -> Pairs:
        """The pairs of a held-out file, or the first `limit` of them."""
        rows = self._rows(self.sentences(split, limit))
        return self._padded(rows, torch.arange(len(rows[0])))

    def sentences(self, split: Split, limit: int | None = None) -> TextPairs:
        """The same pairs as text, as in the file."""
        return self._complete(split)[: self.held_out(split, limit)]

    # ---- from files to ids -------------------------------------------------------------------------------------------

    @property
    def _held_out(self) -> tuple[Split, ...]:
        return ("validation",) if self.test is None else ("validation", "test")

    def _read(self, split: Split) -> TextPairs:
        """All pairs of a split's files, read once."""
        if split not in self._files:
            name, key = getattr(self, split), "--path" if self.evaluated_file else f"data.{split}"
            if not name:
                raise ConfigError(f"{key} names no file; give the name of one to measure on {split}")
            self._files[split] = parallel_files.read(self.path, name, self.source, self.target, key)
        return self._files[split]

    def _complete(self, split: Split) -> TextPairs:
        """The pairs of a split's files without those with an empty side."""
        return [pair for pair in self._read(split) if all(pair)]

    @cached_property
    def _training(self) -> TextPairs:
        kept = self._without_held_out(_normalized if self.sampling > 1 else _with_single_spaces)
        if not kept:
            raise ConfigError(f"data.training: every pair of {self.training} has a sentence of validation or test")
        return kept

    def _without_held_out(self, normalized: Callable[[str], str]) -> TextPairs:
        held_out = [pair for split in self._held_out for pair in self._complete(split)]
        sources, targets = ({normalized(pair[side]) for pair in held_out} for side in (0, 1))
        pairs = self._complete("training")
        return [pair for pair in pairs if normalized(pair[0]) not in sources and normalized(pair[1]) not in targets]

    def _training_texts(self) -> Iterator[list[str]]:
        for start in range(0, len(self._training), PAIRS_AT_ONCE):
            texts = [text for pair in self._training[start : start + PAIRS_AT_ONCE] for text in pair]
            yield [*map(lower, texts)] if self.lowercase else texts

    def _rows(self, sentences: TextPairs, max_tokens: int | None = None) -> tuple[FlatRows, FlatRows]:
        """Both sides as ids; with a limit, without pairs that are longer on either side."""
        special = self.vocabulary.special_tokens
        source, target = (self.vocabulary.encode_batch([pair[side] for pair in sentences]) for side in (0, 1))
        pairs = [*zip(map(special.question, source), map(special.answer, target), strict=True)]
        if max_tokens is not None:
            pairs = [pair for pair in pairs if max(map(len, pair)) <= max_tokens]
        pad = self.vocabulary.special.pad
        return FlatRows.of([pair[0] for pair in pairs], pad), FlatRows.of([pair[1] for pair in pairs], pad)

    @cached_property
    def _pairs(self) -> tuple[FlatRows, FlatRows]:
        """Both sides of the training pairs."""
        rows = self._rows(self._training, self.max_tokens)
        if not len(rows[0]):
            raise ConfigError(f"data.max_tokens: no training pair has at most {self.max_tokens} tokens on both sides")
        return rows

    @cached_property
    def _buckets(self) -> tuple[Tensor, Tensor]:
        """The training pairs by length, and the borders in this order between buckets of about equally many pairs."""
        source, target = (rows.lengths for rows in self._pairs)
        # Sorted by the longer side, then by both.
        order = torch.from_numpy(np.lexsort((source + target, torch.maximum(source, target))))
        count = max(1, min(self.buckets, len(order) // self.batch_size))
        return order, torch.arange(count + 1) * len(order) // count

    def _padded(self, rows: tuple[FlatRows, FlatRows], chosen: Tensor) -> Pairs:
        return Pairs(*rows[0].joined(chosen[:, None]), *rows[1].joined(chosen[:, None]))


def _normalized(sentence: str) -> str:
    """A sentence in one case without punctuation and spacing, for comparison; one of punctuation alone keeps it."""
    sentence = _with_single_spaces(sentence)  # so that sentences that are equal there are equal here
    return "".join(filter(_is_compared, unicodedata.normalize("NFKC", sentence).casefold())) or sentence


@cache
def _is_compared(character: str) -> bool:
    """Whether a character is neither punctuation nor a standalone accent, spacing or a control character."""
    category = unicodedata.category(character)
    return category[0] not in "PZC" and category != "Sk"


def _with_single_spaces(sentence: str) -> str:
    """A sentence in one case with single spaces: compared in runs that began with sampling 1, and for counts."""
    return " ".join(sentence.casefold().split())
