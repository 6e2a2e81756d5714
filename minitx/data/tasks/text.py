"""Running text as a task, to go on with or to fill in.

Legend: N examples, T tokens of a block.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch

from minitx.config.schema import Options
from minitx.data.examples import Examples, Kind, Masked, PackedMasked, PackedStream, Stream
from minitx.data.splits import Split
from minitx.data.tasks.base import Task, generator, register
from minitx.data.text import corpora, masking
from minitx.data.text import token_cache as encoded
from minitx.data.text.readers import Corpus
from minitx.data.tokenizers import Tokenizer


@register("text")
@dataclass(kw_only=True)
class Text(Task):
    """Language modelling on running text: "the cat sa" -> "t"."""

    kind: ClassVar[Kind] = "stream"

    path: str = "python_code"
    """A file of text, JSON, CSV or Parquet, a folder of them, owner/name on the hub, or a corpus of `minitx list`."""
    column: str = "text"
    """Of a table: what the text stands in. Each row is a document, empty ones are skipped."""
    documents: Literal["auto", "whole", "row", "file", "paragraph", "line"] = "auto"
    """What is a document; `<eos>` stands between two of them. auto: a row of a table, for text files whole: none."""
    isolate: bool = False
    """Whether documents in one block do not see each other, instead of only being told apart by `<eos>`."""
    subset: str | None = None
    """Of a data set on the hub that has several."""
    streaming: bool = False
    """Read a data set on the hub as it comes, without a copy of it on disk."""
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
        if self.isolate and self.documents == "whole":
            raise ValueError("data.isolate: data.documents whole is one running text, with nothing to keep apart")
        if self.block < 1:
            raise ValueError(f"data.block must be at least 1, got {self.block}")
        for name in ("validation_share", "test_share"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"data.{name} must lie in [0, 1), got {getattr(self, name)}")
        if self.validation_share + self.test_share >= 1.0:
            raise ValueError(
                "data.validation_share and data.test_share leave nothing for training, got "
                f"{self.validation_share} and {self.test_share}"
            )

    def on_file(self, path: str) -> Text:
        """Another text."""
        return dataclasses.replace(self, path=path)

    @cached_property
    def _corpus(self) -> Corpus:
        corpus = corpora.load(self.path, self.column, self.documents, self.subset, self.streaming)
        if self.isolate and not corpus.packed:
            raise ValueError(
                f"data.isolate: {self.path} is read as one running text; let data.documents tell what is a document"
            )
        return corpus

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """Trained on the text with its held-out parts, so that no held-out character is unknown."""
        return encoded.train_tokenizer(self._corpus, self.tokenizer)

    def takes(self, tokenizer: Tokenizer) -> bool:
        """Any will do: text is text."""
        return True

    @cached_property
    def _parts(self) -> dict[Split, np.ndarray]:
        """The ids of each split."""
        ids = encoded.encode(self._corpus, self.vocabulary)
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
        """Blocks from random places; none reaches into what is held out."""
        ids = self._parts["training"]
        starts = torch.randint(0, len(ids) - self.block, (size,), generator=generator).numpy()
        return self._blocks(ids, starts)

    def examples(self, split: Split, limit: int | None = None) -> Examples:
        """The held-out text, cut into blocks that do not overlap: all, or at most `limit` of them, evenly spread.

        Without a limit, at most data.test_size.
        """
        ids = self._parts[split]
        if len(ids) < 2:
            raise ValueError(f"data.{split}_share leaves no text for {split}; make it larger than 0")
        starts = np.arange(0, len(ids) - 1, self.block)
        limit = self.test_size if limit is None else limit
        if limit < len(starts):
            starts = starts[np.linspace(0, len(starts) - 1, limit).astype(int)]
        return self._blocks(ids, starts)

    def _blocks(self, ids: np.ndarray, starts: np.ndarray) -> Stream | PackedStream:
        """ids[start : start + block + 1] for each start; padding after the end of the text."""
        special = self.vocabulary.special
        places = starts[:, None] + np.arange(self.block + 1)  # [N, T + 1]
        blocks = torch.from_numpy(ids[np.minimum(places, len(ids) - 1)].astype(np.int64))
        blocks.masked_fill_(torch.from_numpy(places >= len(ids)), special.pad)
        if not self.isolate:
            return Stream(blocks)
        ends = (blocks == special.eos).long()
        return PackedStream(blocks, ends.cumsum(dim=1) - ends)  # <eos> belongs to the document that it ends


@register("masked_text")
@dataclass(kw_only=True)
class MaskedText(Text):
    """Masked language modelling: `the c<mask>t sat` -> "a" in its place."""

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

    def _hide(self, stream: Examples, generator: torch.Generator) -> Masked | PackedMasked:
        ids, *documents = (tensor[:, :-1] for tensor in stream)
        vocabulary = self.vocabulary
        hidden = masking.hide(ids, vocabulary.special, vocabulary.vocab_size, self.mask_share, generator)
        return PackedMasked(*hidden, *documents) if documents else hidden
