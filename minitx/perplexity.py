"""Figures of a language model that can be compared between tokenizers and contexts.

Legend: N windows, T tokens of a window.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minitx.data.examples import Stream
from minitx.data.framing import IGNORE, frame
from minitx.data.tokenizers import SpecialIds, Tokenizer
from minitx.evaluation import BATCH, Scores, evaluating, teacher_forced
from minitx.hardware import moved
from minitx.models import Transformer


def text_figures(scores: Scores, stream: Stream, tokenizer: Tokenizer) -> dict[str, float]:
    """What a token costs, per token and per piece of the text itself, whatever the tokens are.

    Args:
        scores: of the whole stream.
        stream: whose text is divided by.
        tokenizer: of the stream; an unknown character counts as one character and one byte.

    Returns:
        perplexity (per token), bits_per_character and bits_per_byte (UTF-8). Hidden from the denominators: the first
        token, which is never predicted.
    """
    predicted = stream.ids[:, 1:][stream.ids[:, 1:] != tokenizer.special.pad].tolist()
    text, unknown = tokenizer.decode(predicted), predicted.count(tokenizer.special.unk)
    bits = scores.loss / math.log(2)
    return {
        "perplexity": math.exp(min(scores.loss / max(scores.tokens, 1), 700.0)),  # beyond is no float
        "bits_per_character": bits / max(len(text) + unknown, 1),
        "bits_per_byte": bits / max(len(text.encode()) + unknown, 1),
    }


def strided(model: Transformer, stream: Stream, stride: int, architecture: str, special: SpecialIds) -> Scores:
    """Scores with overlapping windows: each token is counted once, where its window shows the most before it.

    A window as long as a block begins every `stride` tokens; of each but the first only the last `stride` tokens count,
    which see block - stride tokens or more before them. A stride of the block is evaluation in blocks; a stride of 1
    shows every token all the context that the model can take.

    Args:
        model: of running text.
        stream: the held-out text, cut into blocks that follow on each other.
        stride: 1 to block.
        architecture: of the model.
        special: ids of the tokenizer.

    Raises:
        ValueError: a stride out of range, or blocks that are not of one piece.
    """
    block = stream.ids.size(1) - 1
    if not 1 <= stride <= block:
        raise ValueError(f"--stride must lie between 1 and data.block, which is {block}; got {stride}")
    if not torch.equal(stream.ids[1:, 0], stream.ids[:-1, -1]):
        raise ValueError("--stride needs running text in one piece; these blocks do not follow on each other")
    ids = torch.cat((stream.ids[0, :1], stream.ids[:, 1:].flatten()))
    ids = ids[: int((ids != special.pad).sum())]  # padding stands only after the end
    total = Scores()
    device = next(model.parameters()).device
    with evaluating(model), torch.inference_mode():
        starts = torch.arange(0, max(len(ids) - 1 - block, 0) + stride, stride)
        for part in starts.split(BATCH):
            windows = moved(_windows(ids, part, block, special.pad), device)
            batch = frame(Stream(windows), architecture, special)
            again = torch.arange(block) < block - stride  # counted in an earlier window
            seen = moved(again & (part > 0)[:, None], device)
            scores = teacher_forced(model, batch._replace(labels=batch.labels.masked_fill(seen, IGNORE)))
            total += Scores(len(part), None, scores.tokens, scores.correct, scores.loss)
    return total


def _windows(ids: Tensor, starts: Tensor, block: int, pad: int) -> Tensor:
    """ids[start : start + block + 1] for each start, padding past the end: [N, T + 1]."""
    padded = torch.nn.functional.pad(ids, (0, block + 1), value=pad)
    return padded[starts[:, None] + torch.arange(block + 1)]
