"""Where special tokens stand around questions and answers, and which architecture can express which task.

Legend: N examples, S source symbols, T target symbols, P prompt tokens, W tokens of the longest joined row.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.batch import IGNORE
from minitx.data.special_tokens import SpecialIds

Kind = Literal["pairs", "stream", "masked"]
"""Questions with answers, running text, or text with masked tokens."""


class Prompt(NamedTuple):
    """The start of generation."""

    ids: Tensor  # [N, P], the first tokens handed to step
    keep: Tensor | None  # [N, P], False for padding on the left; None where there is none
    source: tuple[Tensor, ...] = ()  # arguments of the model's start


def check(architecture: str, kind: Kind, longest: tuple[int, int], aligned: bool = True) -> None:
    """Refuse an architecture that cannot express a task.

    Args:
        architecture: of the model.
        kind: of the task's examples.
        longest: maximum numbers of source and target symbols of an example.
        aligned: every answer is as long as its own question, not only the longest as the longest.

    Raises:
        ConfigError: with the key to change.
    """
    if kind == "masked" and architecture != "encoder_only":
        raise ConfigError(f"model.architecture: masked tokens need encoder_only; {architecture} reads them all")
    if kind == "stream" and architecture != "decoder_only":
        raise ConfigError(
            f"model.architecture: running text needs decoder_only; {architecture} needs questions and answers"
        )
    if kind == "pairs" and architecture == "encoder_only" and (longest[0] != longest[1] or not aligned):
        raise ConfigError(
            "model.architecture: encoder_only answers position by position, so question and answer must be equally "
            f"long; use encoder_decoder or decoder_only (here the longest have {longest[0]} and {longest[1]} tokens)"
        )


def positions(architecture: str, longest: tuple[int, int]) -> int:
    """Number of tokens in the longest sequence of a stack, for examples of at most longest = (source, target)."""
    source, target = longest
    if source == 0:
        return target
    return {
        "encoder_decoder": max(source, target + 1),  # <bos> and the answer
        "decoder_only": source + 1 + target,  # question, <sep>, answer
        "encoder_only": source,
    }[architecture]


def prompt(source: Tensor, keep: Tensor, architecture: str, special: SpecialIds) -> Prompt:
    """The prompt that asks for the answers to questions [N, S], padded on the right."""
    if architecture == "encoder_decoder":
        return Prompt(torch.full_like(source[:, :1], special.bos), None, (source, keep))
    ids, keep_left = right_aligned(source, keep, special)
    sep = torch.full_like(ids[:, :1], special.sep)
    if keep_left is not None:
        keep_left = torch.cat((keep_left, torch.ones_like(sep, dtype=torch.bool)), dim=1)
    return Prompt(torch.cat((ids, sep), dim=1), keep_left)


def right_aligned(ids: Tensor, keep: Tensor, special: SpecialIds) -> tuple[Tensor, Tensor | None]:
    """Rows [N, S] padded on the right, moved so that all end in the same column; keep is None if nothing moved."""
    if bool(keep.all()):
        return ids, None
    size = ids.size(1)
    index = torch.arange(size, device=ids.device) - (size - keep.sum(dim=1, keepdim=True))  # [N, S]
    return ids.gather(1, index.clamp(min=0)).masked_fill(index < 0, special.pad), index >= 0


def labels_where(predicted: Tensor, ids: Tensor) -> Tensor:
    """Ids as labels where they are predicted, IGNORE elsewhere."""
    return torch.where(predicted, ids, IGNORE)


def append_eos(target: Tensor, keep: Tensor, special: SpecialIds) -> tuple[Tensor, Tensor]:
    """Insert <eos> after the last real symbol of target [N, T]; returns ids and keep [N, T + 1]."""
    lengths = keep.sum(dim=1, keepdim=True)
    index = torch.arange(target.size(1) + 1, device=target.device)
    padded = torch.nn.functional.pad(target, (0, 1), value=special.pad)
    ids = padded.masked_fill(index == lengths, special.eos).masked_fill(index > lengths, special.pad)
    return ids, index <= lengths


def join(
    source: Tensor, source_keep: Tensor, target: Tensor, target_keep: Tensor, special: SpecialIds
) -> tuple[Tensor, Tensor, Tensor]:
    """Join each row as source <sep> target <eos>, without gaps.

    Returns:
        ids [N, W], labels [N, W] with IGNORE outside the answers, and the index [N] of each answer's first token.
    """
    separators = source_keep.sum(dim=1, keepdim=True)
    starts = separators + 1
    ends = starts + target_keep.sum(dim=1, keepdim=True)
    ids = source.new_full((source.size(0), source.size(1) + 1 + target.size(1) + 1), special.pad)
    labels = torch.full_like(ids, IGNORE)
    # The answer overwrites the padding after its question, and <eos> the padding after the answer.
    ids[:, : source.size(1)] = source
    index = starts + torch.arange(target.size(1), device=source.device)
    ids.scatter_(1, index, target).scatter_(1, separators, special.sep).scatter_(1, ends, special.eos)
    labels.scatter_(1, index, labels_where(target_keep, target)).scatter_(1, ends, special.eos)
    # Where long questions have short answers and the other way round, W is about half of S + T.
    width = int(ends.max()) + 1
    return ids[:, :width], labels[:, :width], starts[:, 0]
