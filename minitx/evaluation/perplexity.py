"""Perplexity and bits of a language model, comparable between tokenizers and contexts.

Legend: N windows, T tokens of a window.
"""

import math
import re
from copy import copy
from dataclasses import replace

import torch
import torch.nn.functional as F

from minitx.config.errors import ConfigError
from minitx.data.batch import IGNORE
from minitx.data.examples import Stream
from minitx.data.text.work_progress import progress
from minitx.data.tokenizers import TRAIL, SpecialIds, Tokenizer
from minitx.evaluation.metrics import Scores, evaluating, rows_at_once, teacher_forced
from minitx.hardware.devices import moved
from minitx.models.transformers import Transformer

BLOCKS_AT_ONCE = 10_000  # of which the text is decoded: it takes far more memory than their ids
SPACING_DECODERS = ("NoneType", "WordPiece", "BPEDecoder")  # put spaces between tokens that the text may not have


def text_figures(
    scores: Scores, stream: Stream, tokenizer: Tokenizer, unknown: tuple[int, int] | None
) -> dict[str, float]:
    """Perplexity per token, and bits per character and per byte (UTF-8), which do not depend on the tokenizer.

    The characters and bytes are those of the predicted tokens, all of the stream but the first. Those that <unk>
    stands for are `unknown`; None: each <unk> counts as one character and one byte. No such figures with one of
    SPACING_DECODERS. The share of <unk> is a figure if it occurs.
    """
    special = tokenizer.special
    labels = Stream(stream.ids).frame("decoder_only", special).labels
    count = count_unknown(labels, special)
    figures = {"perplexity": math.exp(min(scores.loss / max(scores.tokens, 1), 700.0))}  # exp overflows beyond
    if type(tokenizer.backend.decoder).__name__ not in SPACING_DECODERS:
        starts = range(0, len(stream), BLOCKS_AT_ONCE)
        extents = [_extent(tokenizer, stream.slice(start, start + BLOCKS_AT_ONCE)) for start in starts]
        characters, size = map(sum, zip(*extents, strict=True))
        unknown_characters, unknown_bytes = (count, count) if unknown is None else unknown
        bits = scores.loss / math.log(2)
        figures["bits_per_character"] = bits / max(characters + unknown_characters, 1)
        figures["bits_per_byte"] = bits / max(size + unknown_bytes, 1)
    if count:
        figures["unknown_tokens"] = count / int((labels != IGNORE).sum())
    return figures


def count_unknown(ids: torch.Tensor, special: SpecialIds) -> int:
    """The number of <unk>; none if it is also <eos>, which ends documents (GPT-2)."""
    return 0 if special.unk == special.eos else int((ids == special.unk).sum())


def _extent(tokenizer: Tokenizer, stream: Stream) -> tuple[int, int]:
    """Characters and bytes of the text; a character that a block cuts counts where it begins, a byte where it is."""
    rows = _parts(stream, tokenizer.special)
    tokenizer = copy(tokenizer)  # without a <pad> of its own, a token of text is its padding
    tokenizer.special_tokens = replace(tokenizer.special_tokens, special=tokenizer.special._replace(pad=IGNORE))
    special = {*tokenizer.special}
    parts = [(row[:1], [token for token in row[1:] if token not in special]) for row in rows]
    if type(tokenizer.backend.decoder).__name__ != "ByteLevel":
        text = "".join(tokenizer.decode_after(before, ids) for before, ids in parts)
        return len(text), len(text.encode())
    spelling = tokenizer.backend.id_to_token
    text = "".join(str(spelling(token)) for _, ids in parts for token in ids)
    return len(text) - len(re.findall(TRAIL, text)), len(text)


def _parts(stream: Stream, special: SpecialIds) -> list[list[int]]:
    """The predicted tokens of each document or of adjacent blocks, after the token before them; padding is IGNORE.

    The space that SentencePiece puts before every document is not text; one before a word within a document is.
    """
    parts, labels = [[special.eos]], stream.frame("decoder_only", special).labels
    for first, predicted in zip(stream.ids[:, 0].tolist(), labels.tolist(), strict=True):
        if first != parts[-1][-1]:
            parts.append([first])
        for token in predicted:
            parts[-1].append(token)
            if token == special.eos:
                parts.append([token])
    return parts


def strided(model: Transformer, stream: Stream, stride: int, special: SpecialIds) -> Scores:
    """Scores of consecutive blocks with overlapping windows: each token counts once, with the longest context of any.

    A window of one block starts every `stride` tokens. In each but the first, only the last `stride` tokens count,
    which have a context of at least block - stride tokens. A stride of one block is evaluation in blocks; a stride of 1
    gives every token the longest context of the model.
    """
    block = stream.ids.size(1) - 1
    if not 1 <= stride <= block:
        raise ConfigError(f"--stride must lie between 1 and data.block, which is {block}; got {stride}")
    ids = torch.cat((stream.ids[0, :1], stream.ids[:, 1:].flatten()))
    length = int((ids != special.pad).nonzero()[-1]) + 1  # <eos> within the text may be the padding id too
    ids = F.pad(ids[:length], (0, block + 1), value=special.pad)
    starts = torch.arange(0, max(length - 1 - block, 0) + stride, stride)
    in_overlap = torch.arange(block) < block - stride  # counted in the window before
    total, device = Scores(), next(model.parameters()).device
    with evaluating(model), torch.inference_mode():
        for part in progress(starts.split(rows_at_once(model, block)), "evaluating", len, len(starts), " windows"):
            places = part[:, None] + torch.arange(block + 1)  # [N, T + 1]
            windows = moved(ids[places], device)
            ignored = moved((in_overlap & (part > 0)[:, None]) | (places[:, 1:] >= length), device)
            batch = Stream(windows).frame("decoder_only", special)
            scores = teacher_forced(model, replace(batch, labels=windows[:, 1:].masked_fill(ignored, IGNORE)))
            total += replace(scores, examples=len(part))
    return total
