"""Running text as a task: language modelling and masked language modelling.

Legend: N examples, T tokens of a block.
"""

import dataclasses
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.schema import Options
from minitx.config.validation import Fraction, Size
from minitx.data.examples import Examples, Kind, Masked, Stream
from minitx.data.splits import Split
from minitx.data.tasks.base import Task, generator, register
from minitx.data.text import corpora, token_cache
from minitx.data.text.columns import MissingColumn
from minitx.data.text.readers import DIVISIONS, Corpus
from minitx.data.tokenizers import SpecialIds, Tokenizer

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1
"""Shares of the chosen tokens that become `<mask>` and a random token; the rest are unchanged."""


@register("text")
@dataclass(kw_only=True)
class Text(Task):
    """Language modelling on running text: "the cat sa" -> "t"."""

    kind: ClassVar[Kind] = "stream"

    path: str = "python_code"
    """A file of text, JSON, CSV or Parquet, a folder of them, owner/name on the hub, or a corpus of `minitx list`."""
    column: str = "text"
    """Column of a table with the text. Each row is a document; empty ones are skipped."""
    documents: Literal["auto", "whole", "row", "file", "paragraph", "line"] = "auto"
    """Division into documents, separated by `<eos>`. auto: a row of a table is one; of text files, none
    (whole)."""
    isolate: bool = False
    """Whether attention is masked between the documents of a block, instead of `<eos>` alone separating them."""
    subset: str | None = None
    """Configuration of a data set on the hub that has several."""
    streaming: bool = False
    """Stream a data set of the hub instead of storing a copy on disk."""
    tokenizer: Options = field(default_factory=lambda: {"name": "char"})
    """A registered tokenizer `name` and its own options."""
    block: Size = 128
    """Number of tokens in the model's context."""
    validation_share: Fraction = 0.1
    """Share of the text held out for validation, at its end."""
    test_share: Fraction = 0.0
    """Share of the text held out for a test, before the validation part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.isolate and self.documents == "whole":
            raise ConfigError("data.isolate: data.documents whole is one running text, without documents to isolate")
        if self.validation_share + self.test_share >= 1.0:
            shares = f"{self.validation_share} and {self.test_share}"
            raise ConfigError(f"data.validation_share and data.test_share leave nothing for training, got {shares}")

    def on_file(self, path: str) -> Self:
        """The same task on another text, all of it held out; of a table without data.column, its only text column."""
        divisions = DIVISIONS if corpora.is_text(path) else ("whole",)
        documents = self.documents if self.documents in divisions else "auto"  # which is the rows of a table
        other = dataclasses.replace(self, path=path, documents=documents)
        other.evaluated_file = path
        try:
            any(any(chunk.texts) for chunk in other._corpus.chunks())  # of JSON, a column may begin in any row
        except MissingColumn as error:
            if len(error.texts) != 1:
                reason = f"{path} has no column {self.column!r}, and not exactly one other column of text"
                raise ConfigError(f"--path: {reason}; rename the column to read to {self.column}") from None
            other.column = error.texts[0]
            del other._corpus
        return other

    @cached_property
    def _corpus(self) -> Corpus:
        corpus = corpora.load(self.path, self.column, self.documents, self.subset, self.streaming)
        if self.isolate and not corpus.packed and not self.evaluated_file:
            raise ConfigError(f"data.isolate: {self.path} is read as one running text; set data.documents")
        return corpus

    @property
    def fingerprint(self) -> str:
        """A hash of the whole text, for --resume; empty for a data set on the hub, which has versions of its own."""
        return f"-{self._corpus.key}" if self._corpus.local else ""

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """Trained on the whole text, so that no held-out character is unknown."""
        return token_cache.train_tokenizer(self._corpus, self.tokenizer)

    def adopted(self, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer

    @cached_property
    def _parts(self) -> dict[Split, np.ndarray]:
        ids = token_cache.encode(self._corpus, self.vocabulary)
        if self.evaluated_file:
            return {"training": ids[:0], "test": ids, "validation": ids}
        end = int(len(ids) * (1 - self.validation_share))
        start = end - int(len(ids) * self.test_share)
        if start <= self.block:
            fewer = f"fewer than one block of {self.block} and the token after it"
            advice = "use a longer text or a smaller data.block"
            raise ConfigError(f"data.block: {self.path} holds {start} tokens for training, {fewer}; {advice}")
        return {"training": ids[:start], "test": ids[start:end], "validation": ids[end:]}

    @property
    def longest(self) -> tuple[int, int]:
        return 0, self.block

    @property
    def final_split(self) -> Split:
        return "test" if self.test_share else "validation"

    def batch(self, generator: torch.Generator, size: int) -> Examples:
        ids = self._parts["training"]
        starts = torch.randint(0, len(ids) - self.block, (size,), generator=generator).numpy()
        return self._examples_of(self._blocks(ids, starts), generator)

    def examples(self, split: Split, limit: int | None = None) -> Examples:
        """Consecutive blocks of the held-out text, at most `limit` (by default data.test_size), evenly spread."""
        blocks = self._blocks(self._parts[split], self._starts(split, limit))
        return self._examples_of(blocks, generator(*split.encode()))

    def _starts(self, split: Split, limit: int | None) -> np.ndarray:
        count = len(self._parts[split])
        if count < 2:
            if self.evaluated_file:
                raise ConfigError(f"{self.path} holds fewer than two tokens")
            raise ConfigError(f"data.{split}_share leaves no text for {split}; make it larger")
        starts = np.arange(0, count - 1, self.block)
        limit = self.test_size if limit is None else limit
        return starts[np.linspace(0, len(starts) - 1, limit).astype(int)] if limit < len(starts) else starts

    def unknown_extent(self, split: Split, limit: int | None = None) -> tuple[int, int] | None:
        """Characters and bytes (UTF-8) of the text that `<unk>` stands for in the predicted tokens of these examples.

        None if the text cannot be read a second time, or only from a stream, or if `<unk>` is `<eos>`.
        """
        special = self.vocabulary.special
        if special.unk == special.eos or (self.streaming and not self._corpus.local):
            return None
        places = np.flatnonzero(self._parts[split] == special.unk)
        in_blocks = np.isin((places - 1) // self.block * self.block, self._starts(split, limit))
        if not in_blocks.any():
            return 0, 0
        with suppress(ConfigError):
            extents = token_cache.unknown_extents(self._corpus, self.vocabulary)
            is_last = self.evaluated_file or split == "validation"
            end = len(extents) - (0 if is_last else np.count_nonzero(self._parts["validation"] == special.unk))
            characters, size = extents[end - len(places) : end][in_blocks].sum(axis=0).tolist()
            return characters, size
        return None

    def _examples_of(self, blocks: Stream, generator: torch.Generator) -> Examples:
        """The examples of blocks of text; a subclass may transform them at random."""
        return blocks

    def _blocks(self, ids: np.ndarray, starts: np.ndarray) -> Stream:
        """ids[start : start + block + 1] for each start, padded after the end of the text."""
        special = self.vocabulary.special
        index = starts[:, None] + np.arange(self.block + 1)  # [N, T + 1]
        blocks = torch.from_numpy(ids[np.minimum(index, len(ids) - 1)].astype(np.int64))
        blocks.masked_fill_(torch.from_numpy(index >= len(ids)), special.pad)
        if not self.isolate:
            return Stream(blocks)
        ends = (blocks == special.eos).long()
        return Stream(blocks, ends.cumsum(dim=1) - ends)  # <eos> belongs to the document that it ends


@register("masked_text")
@dataclass(kw_only=True)
class MaskedText(Text):
    """Masked language modelling: `the c<mask>t sat` -> "a" in its place (BERT; Devlin et al. 2019, section 3.1)."""

    kind: ClassVar[Kind] = "masked"

    mask_share: Annotated[float, Interval(gt=0.0, lt=1.0)] = 0.15
    """Probability that a token is to be predicted."""

    @property
    def longest(self) -> tuple[int, int]:
        return self.block, self.block

    def _examples_of(self, blocks: Stream, generator: torch.Generator) -> Masked:
        blocks = blocks.map(lambda part: part[:, :-1])  # the token after a block is not read
        special, vocab_size = self.vocabulary.special, self.vocabulary.vocab_size
        masked = mask_tokens(blocks.ids, special, vocab_size, self.mask_share, generator)
        return dataclasses.replace(masked, documents=blocks.documents)


def mask_tokens(ids: Tensor, special: SpecialIds, vocab_size: int, share: float, generator: torch.Generator) -> Masked:
    """Choose tokens of text [N, T] to predict, none of them special, and replace most of them.

    A chosen token becomes `<mask>` in 80 % of cases, a random token in 10 %, and is kept in 10 %, so that a model
    cannot rely on unmasked tokens either. In a row where none is chosen, the token with the lowest random number is.
    """
    keep = ids != special.pad
    chance = torch.rand(ids.shape, generator=generator).masked_fill(torch.isin(ids, torch.tensor(special)), 2.0)
    chosen = (chance < share) | ((chance <= chance.amin(dim=1, keepdim=True)) & (chance < 1.0))
    fate = torch.rand(ids.shape, generator=generator)
    # An imported tokenizer may have its special tokens last; then a random token may be one of them.
    first = max(special) + 1
    others = torch.randint(first if first < vocab_size else 0, vocab_size, ids.shape, generator=generator)
    source = torch.where(chosen & (fate < MASK_SHARE), special.mask, ids)
    source = torch.where(chosen & (fate >= MASK_SHARE) & (fate < MASK_SHARE + RANDOM_SHARE), others, source)
    return Masked(source, keep, ids, chosen)
