"""Examples as a task yields them, and their framing: how each kind becomes a batch for an architecture.

Legend: N examples, S source symbols, T target symbols, P prompt tokens, W tokens of the longest joined row.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.batch import IGNORE, Batch, TensorRecord
from minitx.data.tokenizers import SpecialIds

Kind = Literal["pairs", "stream", "masked"]
"""Questions with answers, running text, or text with masked tokens."""
EQUALLY_LONG = "encoder_only answers position by position, so question and answer must be equally long"


class Prompt(NamedTuple):
    """The start of generation."""

    ids: Tensor  # [N, P], the first tokens passed to step
    keep: Tensor | None  # [N, P], False for padding on the left; None if there is none
    source: tuple[Tensor, ...] = ()  # arguments of the model's start
    given: Tensor | None = None  # [N, T], tokens that are fed instead of generated; IGNORE where none is


@dataclass(eq=False)
class Examples(TensorRecord):
    """Examples of one kind: the interface that training and evaluation use."""

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

    @property
    def width(self) -> int:
        """An upper bound on the tokens of one sequence."""
        return next(iter(self)).size(1)


@dataclass(eq=False)
class Pairs(Examples):
    """Questions and answers, padded on the right with <pad>, without any other special token."""

    source: Tensor  # [N, S]
    source_keep: Tensor  # [N, S], True for a real symbol
    target: Tensor  # [N, T]
    target_keep: Tensor  # [N, T]
    given: Tensor | None = None  # [N, T], True for a token of the target that the model reads and does not predict

    def frame(self, architecture: str, special: SpecialIds) -> Batch:
        predicted = self.target_keep if self.given is None else self.target_keep & ~self.given
        labels = torch.where(predicted, self.target, IGNORE)
        if architecture == "encoder_only":
            if not torch.equal(self.source_keep, self.target_keep):
                raise ConfigError(f"model.architecture: {EQUALLY_LONG}; use encoder_decoder or decoder_only")
            return Batch(self.source, self.source_keep, None, None, labels)
        labels = ended(labels, self.target_keep, IGNORE, special.eos)
        if architecture == "encoder_decoder":
            return Batch(self.source, self.source_keep, F.pad(self.target, (1, 0), value=special.bos), None, labels)
        # Each row is joined as source <sep> target <eos>, without gaps.
        source = ended(self.source, self.source_keep, special.pad, special.sep)
        target = ended(self.target, self.target_keep, special.pad, special.eos)
        starts = self.source_keep.sum(dim=1, keepdim=True) + 1  # [N, 1], the index of each answer's first token
        index = starts + torch.arange(target.size(1), device=target.device)
        ids = F.pad(source, (0, target.size(1)), value=special.pad).scatter(1, index, target)
        labels = torch.full_like(ids, IGNORE).scatter(1, index, labels)
        # If long questions have short answers and vice versa, W is about half of S + T.
        width = int((starts + self.target_keep.sum(dim=1, keepdim=True)).max()) + 1
        return Batch(None, None, ids[:, : width - 1], None, labels[:, 1:width], starts[:, 0])

    def prompt(self, architecture: str, special: SpecialIds) -> Prompt:
        """The prompt that asks for the answers."""
        given = None if self.given is None else torch.where(self.given, self.target, IGNORE)
        return question_prompt(self.source, self.source_keep, architecture, special)._replace(given=given)

    def reference(self, special: SpecialIds) -> Tensor:
        """The output that a free-running model is compared with, [N, T + 1]: target, <eos>, then padding."""
        return ended(self.target, self.target_keep, special.pad, special.eos)

    @property
    def width(self) -> int:
        """Question, separator and answer."""
        return self.source.size(1) + self.target.size(1) + 1


@dataclass(eq=False)
class Stream(Examples):
    """Blocks of running text, each block + 1 tokens: a model reads all but the last and predicts all but the first."""

    ids: Tensor  # [N, T + 1]; the padding id marks the positions past the end of the text
    documents: Tensor | None = None  # [N, T + 1], the document number of each token, if documents are isolated

    def frame(self, architecture: str, special: SpecialIds) -> Batch:
        """Running text for a decoder alone; nothing is predicted across the boundary between isolated documents."""
        read, following, documents = self.ids[:, :-1], self.ids[:, 1:], None
        # Only trailing pads are padding: the text itself may contain that id, which GPT-2 uses as <eos>.
        predicted = (following != special.pad).flip(1).cumsum(dim=1).flip(1) > 0
        if self.documents is not None:
            documents = self.documents[:, :-1]
            predicted = predicted & (self.documents[:, 1:] == documents)
        return Batch(None, None, read, None, torch.where(predicted, following, IGNORE), documents=documents)


@dataclass(eq=False)
class Masked(Examples):
    """Text with some tokens masked, padded on the right."""

    source: Tensor  # [N, T], the text with masks
    source_keep: Tensor  # [N, T], True for a real token
    target: Tensor  # [N, T], the text itself
    chosen: Tensor  # [N, T], True for a token to be predicted
    documents: Tensor | None = None  # [N, T], the document number of each token, if documents are isolated

    def frame(self, architecture: str, special: SpecialIds) -> Batch:
        labels = torch.where(self.chosen, self.target, IGNORE)
        return Batch(self.source, self.source_keep, None, None, labels, documents=self.documents)


def positions(architecture: str, longest: tuple[int, int]) -> dict[str, int]:
    """Number of tokens in the longest sequence of each stack, for examples of at most longest = (source, target)."""
    source, target = longest
    if architecture == "encoder_decoder":
        return {"encoder": source, "decoder": target + 1}  # <bos> and the answer
    if architecture == "decoder_only":
        return {"decoder": source + 1 + target if source else target}  # question, <sep>, answer; or a stream
    return {"encoder": source}


def question_prompt(source: Tensor, keep: Tensor, architecture: str, special: SpecialIds) -> Prompt:
    """The prompt that asks for the answers to questions [N, S], padded on the right."""
    if architecture == "encoder_decoder":
        return Prompt(torch.full_like(source[:, :1], special.bos), None, (source, keep))
    ids, keep = ended(source, keep, special.pad, special.sep), F.pad(keep, (1, 0), value=True)
    return Prompt(*right_aligned(ids, keep, special))


def right_aligned(ids: Tensor, keep: Tensor, special: SpecialIds) -> tuple[Tensor, Tensor | None]:
    """Rows [N, S] padded on the right, moved so that all end in the same column; keep is None if nothing moved."""
    if bool(keep.all()):
        return ids, None
    index = torch.arange(ids.size(1), device=ids.device) - (ids.size(1) - keep.sum(dim=1, keepdim=True))  # [N, S]
    return ids.gather(1, index.clamp(min=0)).masked_fill(index < 0, special.pad), index >= 0


def ended(ids: Tensor, keep: Tensor, pad: int, end: int) -> Tensor:
    """Insert a token into ids or labels [N, L] after the last real one: [N, L + 1]."""
    return F.pad(ids, (0, 1), value=pad).scatter(1, keep.sum(1, keepdim=True), end)
