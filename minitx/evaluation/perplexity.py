"""Perplexity and bits of a language model, comparable between tokenizers and contexts.

Legend: N windows, T tokens of a window.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.batch import IGNORE
from minitx.data.examples import Stream
from minitx.data.special_tokens import SpecialIds
from minitx.data.tokenizers import Tokenizer
from minitx.evaluation.metrics import EXAMPLES_AT_ONCE, Scores, evaluating, teacher_forced
from minitx.hardware.devices import moved
from minitx.models.transformers import Transformer


def text_figures(scores: Scores, stream: Stream, tokenizer: Tokenizer) -> dict[str, float]:
    """The loss per token, and per character and byte of the text, which do not depend on the tokenizer.

    Args:
        scores: of the whole stream.
        stream: its text gives the numbers of characters and bytes.
        tokenizer: of the stream; an unknown character counts as one character and one byte.

    Returns:
        perplexity (per token), bits_per_character and bits_per_byte (UTF-8). The first token, which is never predicted,
        is not counted.
    """
    predicted = stream.ids[:, 1:][stream.ids[:, 1:] != tokenizer.special.pad].tolist()
    text, unknown = tokenizer.decode(predicted), predicted.count(tokenizer.special.unk)
    bits = scores.loss / math.log(2)
    return {
        "perplexity": math.exp(min(scores.loss / max(scores.tokens, 1), 700.0)),  # exp overflows beyond
        "bits_per_character": bits / max(len(text) + unknown, 1),
        "bits_per_byte": bits / max(len(text.encode()) + unknown, 1),
    }


def strided(model: Transformer, stream: Stream, stride: int, architecture: str, special: SpecialIds) -> Scores:
    """Scores with overlapping windows: each token counts once, in the window that gives it the longest context.

    A window of one block begins every `stride` tokens; of each but the first, only the last `stride` tokens count,
    which have a context of block - stride tokens or more. A stride of one block is evaluation in blocks; a stride of 1
    gives every token the longest context of the model.

    Args:
        model: of running text.
        stream: the held-out text in consecutive blocks.
        stride: between 1 and the block.
        architecture: of the model.
        special: of the tokenizer.

    Raises:
        ConfigError: a stride out of range, or blocks that are not consecutive.
    """
    block = stream.ids.size(1) - 1
    if not 1 <= stride <= block:
        raise ConfigError(f"--stride must lie between 1 and data.block, which is {block}; got {stride}")
    if not torch.equal(stream.ids[1:, 0], stream.ids[:-1, -1]):
        raise ConfigError("--stride needs one running text; these blocks are not consecutive")
    ids = torch.cat((stream.ids[0, :1], stream.ids[:, 1:].flatten()))
    ids = ids[: int((ids != special.pad).sum())]  # padding is at the end only
    total = Scores()
    device = next(model.parameters()).device
    with evaluating(model), torch.inference_mode():
        starts = torch.arange(0, max(len(ids) - 1 - block, 0) + stride, stride)
        for part in starts.split(EXAMPLES_AT_ONCE):
            windows = moved(_windows(ids, part, block, special.pad), device)
            batch = Stream(windows).frame(architecture, special)
            overlap = torch.arange(block) < block - stride  # counted in an earlier window
            counted = moved(overlap & (part > 0)[:, None], device)
            scores = teacher_forced(model, replace(batch, labels=batch.labels.masked_fill(counted, IGNORE)))
            total += Scores(len(part), None, scores.tokens, scores.correct, scores.loss)
    return total


def _windows(ids: Tensor, starts: Tensor, block: int, pad: int) -> Tensor:
    """ids[start : start + block + 1] for each start, padded after the end: [N, T + 1]."""
    padded = torch.nn.functional.pad(ids, (0, block + 1), value=pad)
    return padded[starts[:, None] + torch.arange(block + 1)]
