"""Texts that somebody typed, as a batch for a model; and a batch's tokens, as labels for pictures.

Legend: B texts, T tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minitx.data.examples import Kind, Masked, Pairs, Stream
from minitx.data.framing import IGNORE, Batch, frame
from minitx.data.tokenizers import SpecialIds, Tokenizer
from minitx.hardware import moved


def padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of ids, padded on the right: ids and keep [B, T]."""
    longest = max(1, *map(len, rows))  # an answer may be empty; a tensor without columns helps nobody
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], dtype=torch.long)
    keep = torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
    return moved(ids, device), moved(keep, device)


def framed(
    sources: list[list[int]],
    answers: list[list[int]] | None,
    kind: Kind,
    architecture: str,
    special: SpecialIds,
    device: torch.device,
) -> Batch:
    """The batch of encoded texts.

    Args:
        sources: ids of questions, of beginnings of running text, or of text with <mask> in it.
        answers: ids of the answers, of how the text goes on, or of the text without <mask>; None where there are none.
        kind: what the task yields.
        architecture: what to frame for.
        special: of the tokenizer.
        device: where the batch shall be.

    Raises:
        ValueError: answers of another length than their questions, for an encoder alone.
    """
    if architecture == "encoder_only":
        answers = sources if answers is None else answers  # an encoder never reads the answer
        if [*map(len, sources)] != [*map(len, answers)]:
            told = f"got {[*map(len, sources)]} tokens of text and {[*map(len, answers)]} of target"
            raise ValueError(
                f"an encoder_only model answers place by place: the target must be as long as the text, {told}"
            )
    if kind == "stream":
        return _framed_stream(sources, answers, architecture, special, device)
    source, source_keep = padded(sources, special.pad, device)
    target, target_keep = padded(answers or [[] for _ in sources], special.pad, device)
    if kind == "masked":
        return frame(Masked(source, source_keep, target, source == special.mask), architecture, special)
    return frame(Pairs(source, source_keep, target, target_keep), architecture, special)


def _framed_stream(
    sources: list[list[int]],
    answers: list[list[int]] | None,
    architecture: str,
    special: SpecialIds,
    device: torch.device,
) -> Batch:
    """Running text; only what follows on the beginning is to be predicted where that is told apart."""
    rows = sources if answers is None else [a + b for a, b in zip(sources, answers, strict=True)]
    # One more column, so that a stream's "all but the last" is the whole text.
    ids, _ = padded([[*row, special.pad] for row in rows], special.pad, device)
    batch = frame(Stream(ids), architecture, special)
    if answers is None:
        return batch
    place = torch.arange(batch.labels.size(1), device=device)
    begins = torch.tensor([[len(row) - 1] for row in sources], device=device)
    return batch._replace(labels=batch.labels.masked_fill(place < begins, IGNORE))


def labels(batch: Batch, tokenizer: Tokenizer) -> dict[str, list[list[str]]]:
    """The tokens of a batch as labels for its attention maps, without padding, nor the <eos> of an answer before it."""
    pad, eos = tokenizer.special.pad, tokenizer.special.eos
    sides = {"source": (batch.src, (pad,)), "target": (batch.tgt, (pad, eos))}
    return {
        side: [tokenizer.tokens(_without_end(row, nothing)) for row in ids.tolist()]
        for side, (ids, nothing) in sides.items()
        if ids is not None
    }


def _without_end(row: list[int], nothing: tuple[int, ...]) -> list[int]:
    """A row up to its last token that means something; an <eos> between documents is a token as others.

    Its first token stays: a decoder may start from padding (T5).
    """
    return row[: max((place + 1 for place, token in enumerate(row) if token not in nothing), default=1)]
