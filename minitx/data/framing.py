"""Lay examples out for an architecture: where the special tokens go, what is read and what is to be predicted.

The one place that knows tasks' outputs and architectures' inputs together.

Legend: N examples, S source symbols, T target symbols. Labels of IGNORE are not predicted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.batch import IGNORE, Batch
from minitx.data.examples import Examples, Kind, Masked, PackedMasked, PackedStream, Pairs, Stream
from minitx.data.tokenizers import SpecialIds


class Prompt(NamedTuple):
    """Where generation starts."""

    ids: Tensor  # [N, P], the first tokens handed to step
    keep: Tensor | None  # [N, P], False for padding on the left; None where there is none
    source: tuple[Tensor, ...] = ()  # the arguments of the model's start


def check(architecture: str, kind: Kind, longest: tuple[int, int], aligned: bool = True) -> None:
    """Refuse an architecture that cannot express a task.

    Args:
        architecture: of the model.
        kind: what the task yields.
        longest: the most source and target symbols that an example can have.
        aligned: every answer is as long as its own question, not only the longest as the longest.

    Raises:
        ConfigError: with the key to change.
    """
    if kind == "masked" and architecture != "encoder_only":
        raise ConfigError(f"model.architecture: hidden tokens are told by encoder_only; {architecture} sees them all")
    if kind == "stream" and architecture != "decoder_only":
        raise ConfigError(
            f"model.architecture: running text needs decoder_only; {architecture} needs questions and answers"
        )
    if kind == "pairs" and architecture == "encoder_only" and (longest[0] != longest[1] or not aligned):
        raise ConfigError(
            "model.architecture: encoder_only answers place by place, so question and answer must be equally long; "
            f"use encoder_decoder or decoder_only (here the longest have {longest[0]} and {longest[1]} tokens)"
        )


def positions(architecture: str, longest: tuple[int, int]) -> int:
    """The most tokens in one stack at once, for examples of at most longest = (source, target) symbols."""
    source, target = longest
    if source == 0:
        return target
    return {
        "encoder_decoder": max(source, target + 1),  # <bos> and the answer
        "decoder_only": source + 1 + target,  # question, <sep>, answer
        "encoder_only": source,
    }[architecture]


def frame(examples: Examples, architecture: str, special: SpecialIds) -> Batch:
    """The batch of a few examples.

    | architecture    | reads                              | predicts                          |
    |-----------------|------------------------------------|-----------------------------------|
    | encoder_decoder | source; <bos> target               | target <eos>                      |
    | decoder_only    | source <sep> target; or the stream | target <eos>; or the next token   |
    | encoder_only    | source                             | target, place by place            |
    | encoder_only    | text with tokens hidden            | those tokens                      |

    Where documents do not see each other, nothing is predicted across their border either.
    """
    if isinstance(examples, PackedStream | PackedMasked):
        return _frame_packed(examples, architecture, special)
    if isinstance(examples, Masked):
        return Batch(examples.source, examples.source_keep, None, None, _labels(examples.target, examples.chosen))
    if isinstance(examples, Stream):
        ids = examples.ids
        return Batch(None, None, ids[:, :-1], None, _labels(ids[:, 1:], ids[:, 1:] != special.pad))
    source, source_keep, target, target_keep = examples
    if architecture == "encoder_only":
        return Batch(source, source_keep, None, None, _labels(target, target_keep))
    if architecture == "encoder_decoder":
        bos = target.new_full((target.size(0), 1), special.bos)
        answer, answer_keep = _append(target, target_keep, special)
        return Batch(source, source_keep, torch.cat((bos, target), dim=1), None, _labels(answer, answer_keep))
    ids, labels, starts = _join(examples, special)
    return Batch(None, None, ids[:, :-1], None, labels[:, 1:], starts[:, 0])


def _frame_packed(examples: PackedStream | PackedMasked, architecture: str, special: SpecialIds) -> Batch:
    *others, documents = examples
    if isinstance(examples, PackedMasked):
        return frame(Masked(*others), architecture, special)._replace(documents=documents)
    batch = frame(Stream(*others), architecture, special)
    labels = _labels(batch.labels, documents[:, 1:] == documents[:, :-1])
    return batch._replace(labels=labels, documents=documents[:, :-1])


def prompt(source: Tensor, keep: Tensor, architecture: str, special: SpecialIds) -> Prompt:
    """Where to start generating the answers to questions [N, S], padded on the right."""
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
    places = torch.arange(size, device=ids.device) - (size - keep.sum(dim=1, keepdim=True))  # [N, S]
    return ids.gather(1, places.clamp(min=0)).masked_fill(places < 0, special.pad), places >= 0


def reference(pairs: Pairs, special: SpecialIds) -> Tensor:
    """What a free-running model should write: target, <eos>, then padding, [N, T + 1]."""
    return _append(pairs.target, pairs.target_keep, special)[0]


def _append(target: Tensor, keep: Tensor, special: SpecialIds) -> tuple[Tensor, Tensor]:
    """target [N, T] with <eos> behind its last real symbol: ids and keep [N, T + 1]."""
    lengths = keep.sum(dim=1, keepdim=True)
    place = torch.arange(target.size(1) + 1, device=target.device)
    padded = torch.nn.functional.pad(target, (0, 1), value=special.pad)
    ids = padded.masked_fill(place == lengths, special.eos).masked_fill(place > lengths, special.pad)
    return ids, place <= lengths


def _join(pairs: Pairs, special: SpecialIds) -> tuple[Tensor, Tensor, Tensor]:
    """source <sep> target <eos> without gaps: [N, W], as wide as the longest needs.

    Also the same with IGNORE outside the answers, and the places [N, 1] where the answers start, behind <sep>.
    """
    source, source_keep, target, target_keep = pairs
    separators = source_keep.sum(dim=1, keepdim=True)
    starts = separators + 1
    ends = starts + target_keep.sum(dim=1, keepdim=True)
    ids = source.new_full((source.size(0), source.size(1) + 1 + target.size(1) + 1), special.pad)
    labels = torch.full_like(ids, IGNORE)
    ids[:, : source.size(1)] = source  # padding behind it, over which the answer is laid, and behind that one's <eos>
    places = starts + torch.arange(target.size(1), device=source.device)
    ids.scatter_(1, places, target).scatter_(1, separators, special.sep).scatter_(1, ends, special.eos)
    labels.scatter_(1, places, _labels(target, target_keep)).scatter_(1, ends, special.eos)
    # Where long questions have short answers and the other way round, W is about half of S + T.
    width = int(ends.max()) + 1
    return ids[:, :width], labels[:, :width], starts


def _labels(ids: Tensor, predicted: Tensor) -> Tensor:
    return torch.where(predicted, ids, IGNORE)
