"""Examples as a task yields them, and how each kind becomes a batch for an architecture.

Legend: N examples, S source symbols, T target symbols.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from minitx.data.batch import Batch, TensorRecord
from minitx.data.framing import Prompt, append_eos, join, labels_where, prompt
from minitx.data.special_tokens import SpecialIds
from minitx.data.tokenizers import Tokenizer


@dataclass(eq=False)
class Examples(TensorRecord):
    """Examples of one kind: the interface that training, evaluation and logging use."""

    def frame(self, architecture: str, special: SpecialIds) -> Batch:
        """The batch for an architecture.

        | architecture    | reads                              | predicts                          |
        |-----------------|------------------------------------|-----------------------------------|
        | encoder_decoder | source; <bos> target               | target <eos>                      |
        | decoder_only    | source <sep> target; or the stream | target <eos>; or the next token   |
        | encoder_only    | source                             | target, position by position      |
        | encoder_only    | text with masked tokens            | those tokens                      |
        """
        raise NotImplementedError

    def prompt(self, architecture: str, special: SpecialIds) -> Prompt:
        """The prompt that asks for the answers, of examples with a reference."""
        raise NotImplementedError

    def reference(self, special: SpecialIds) -> Tensor | None:
        """The output that a free-running model is compared with, [N, T + 1]; None for examples without answers."""
        return None

    def texts(self, tokenizer: Tokenizer, max_tokens: int) -> tuple[list[str], list[str] | None]:
        """Prompts as text, and their answers where there are any; of running text at most max_tokens."""
        raise NotImplementedError

    def clip(self, max_tokens: int) -> Self:
        """The same examples with at most max_tokens of running text to read; questions and answers stay whole."""
        return self

    @property
    def width(self) -> int:
        """An upper bound on the tokens of one sequence."""
        raise NotImplementedError


@dataclass(eq=False)
class Pairs(Examples):
    """Questions and answers, padded on the right with <pad>, without any other special token."""

    source: Tensor  # [N, S]
    source_keep: Tensor  # [N, S], True for a real symbol
    target: Tensor  # [N, T]
    target_keep: Tensor  # [N, T]

    def frame(self, architecture: str, special: SpecialIds) -> Batch:
        """See Examples."""
        if architecture == "encoder_only":
            labels = labels_where(self.target_keep, self.target)
            return Batch(self.source, self.source_keep, None, None, labels)
        if architecture == "encoder_decoder":
            bos = self.target.new_full((self.target.size(0), 1), special.bos)
            answer, answer_keep = append_eos(self.target, self.target_keep, special)
            tgt = torch.cat((bos, self.target), dim=1)
            return Batch(self.source, self.source_keep, tgt, None, labels_where(answer_keep, answer))
        ids, labels, starts = join(self.source, self.source_keep, self.target, self.target_keep, special)
        return Batch(None, None, ids[:, :-1], None, labels[:, 1:], starts)

    def prompt(self, architecture: str, special: SpecialIds) -> Prompt:
        """See Examples."""
        return prompt(self.source, self.source_keep, architecture, special)

    def reference(self, special: SpecialIds) -> Tensor:
        """Target, <eos>, then padding."""
        return append_eos(self.target, self.target_keep, special)[0]

    def texts(self, tokenizer: Tokenizer, max_tokens: int) -> tuple[list[str], list[str] | None]:
        """See Examples."""
        questions, answers = ([tokenizer.decode(row) for row in ids.tolist()] for ids in (self.source, self.target))
        return questions, answers

    @property
    def width(self) -> int:
        """Question, separator and answer."""
        return self.source.size(1) + self.target.size(1) + 1


@dataclass(eq=False)
class Stream(Examples):
    """Blocks of running text, each block + 1 tokens: a model reads all but the last and predicts all but the first."""

    ids: Tensor  # [N, T + 1]; the padding id marks the positions past the end of the text
    documents: Tensor | None = None  # [N, T + 1], the document number of each token, where documents are isolated

    def frame(self, architecture: str, special: SpecialIds) -> Batch:
        """See Examples. Between isolated documents nothing is predicted."""
        following = self.ids[:, 1:]
        predicted = following != special.pad
        if self.documents is None:
            return Batch(None, None, self.ids[:, :-1], None, labels_where(predicted, following))
        predicted = predicted & (self.documents[:, 1:] == self.documents[:, :-1])
        labels = labels_where(predicted, following)
        return Batch(None, None, self.ids[:, :-1], None, labels, documents=self.documents[:, :-1])

    def texts(self, tokenizer: Tokenizer, max_tokens: int) -> tuple[list[str], None]:
        """The longest document within max_tokens of each block."""
        rows, eos = self.ids.tolist(), tokenizer.special.eos
        return [tokenizer.decode(row[_longest_document(row[:max_tokens], eos)]) for row in rows], None

    def clip(self, max_tokens: int) -> Self:
        """See Examples."""
        return self.map(lambda part: part[:, : max_tokens + 1])

    @property
    def width(self) -> int:
        """A block and the token after it."""
        return self.ids.size(1)


@dataclass(eq=False)
class Masked(Examples):
    """Text with some tokens masked, padded on the right."""

    source: Tensor  # [N, T], the text with masks
    source_keep: Tensor  # [N, T], True for a real token
    target: Tensor  # [N, T], the text itself
    chosen: Tensor  # [N, T], True for a token to be predicted
    documents: Tensor | None = None  # [N, T], the document number of each token, where documents are isolated

    def frame(self, architecture: str, special: SpecialIds) -> Batch:
        """See Examples."""
        labels = labels_where(self.chosen, self.target)
        return Batch(self.source, self.source_keep, None, None, labels, documents=self.documents)

    def texts(self, tokenizer: Tokenizer, max_tokens: int) -> tuple[list[str], list[str] | None]:
        """The longest document within max_tokens of each block, with masks and without."""
        rows, eos = self.target.tolist(), tokenizer.special.eos
        parts = [_longest_document(row[:max_tokens], eos) for row in rows]
        masked = [tokenizer.decode_masked(row[part]) for row, part in zip(self.source.tolist(), parts, strict=True)]
        return masked, [tokenizer.decode(row[part]) for row, part in zip(rows, parts, strict=True)]

    @property
    def width(self) -> int:
        """One block."""
        return self.source.size(1)


def _longest_document(row: list[int], eos: int) -> slice:
    """The longest run of tokens without `eos`."""
    borders = [-1, *(index for index, token in enumerate(row) if token == eos), len(row)]
    start, stop = max(pairwise(borders), key=lambda pair: pair[1] - pair[0])
    return slice(start + 1, stop)
