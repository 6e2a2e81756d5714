"""Running text as a task, to go on with or to fill in.

Legend: N examples, T tokens of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from minitx.config import Options
from minitx.data import corpora, encoded, masking
from minitx.data.examples import Examples, Kind, Stream
from minitx.data.splits import Split
from minitx.data.tasks.base import Task, generator, register
from minitx.data.tokenizers import TOKENIZERS, Tokenizer
from minitx.options import build

if TYPE_CHECKING:
    import numpy as np


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
