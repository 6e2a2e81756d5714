"""From texts that a user typed to a batch for a model, and from a batch to the token labels of figures.

Legend: B texts, T tokens of the longest.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.batch import IGNORE, Batch
from minitx.data.examples import Masked, Pairs, Stream
from minitx.data.tasks.base import Task
from minitx.data.tokenizers import Tokenizer
from minitx.hardware.devices import moved


def padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad rows of ids on the right: ids and keep [B, T], with at least one column."""
    longest = max(1, *map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], dtype=torch.long, device="cpu")
    keep = torch.arange(longest, device="cpu") < torch.tensor([[len(row)] for row in rows], device="cpu")
    return moved(ids, device), moved(keep, device)


def framed(
    prompts: list[list[int]], answers: Sequence[list[int]] | None, task: Task, architecture: str, device: torch.device
) -> Batch:
    """The batch of encoded texts; raises ConfigError if an encoder alone is to answer in another length.

    Prompts are questions, beginnings of running text, or text with <mask> in it; answers are those to the questions,
    continuations, or the text without <mask>, None if there are none.
    """
    special, (sources, given) = task.vocabulary.special, zip(*map(task.divide, prompts), strict=True)
    if architecture == "encoder_only":
        answers = sources if answers is None else answers  # an encoder never reads the answer
        if [*map(len, sources)] != [*map(len, answers)]:
            must = "an encoder_only model answers position by position: the target must be as long as the text"
            raise ConfigError(f"{must}, got {[*map(len, sources)]} tokens of text and {[*map(len, answers)]} of target")
    if task.kind == "stream":
        rows = sources if answers is None else [a + b for a, b in zip(sources, answers, strict=True)]
        # One more column, so that a stream's "all but the last" is the whole text.
        ids, _ = padded([[*row, special.pad] for row in rows], special.pad, device)
        batch = Stream(ids).frame(architecture, special)
        if answers is None:
            return batch
        index = torch.arange(batch.labels.size(1), device=device)
        start, end = (torch.tensor([[len(row) - 1] for row in part], device=device) for part in (sources, rows))
        return replace(batch, labels=torch.where((index >= start) & (index < end), ids[:, 1:], IGNORE))
    source, source_keep = padded(sources, special.pad, device)
    answers, masks = answers or [[] for _ in sources], None
    if any(given):
        answers, flags = zip(*map(with_given, given, answers), strict=True)
        masks = padded(flags, 0, device)[0].bool()
    # An empty question has a column of padding, because an encoder needs one; empty answers have none.
    target, target_keep = (part[:, : max(map(len, answers))] for part in padded(answers, special.pad, device))
    if task.kind == "masked":
        return Masked(source, source_keep, target, source == special.mask).frame(architecture, special)
    return Pairs(source, source_keep, target, target_keep, masks).frame(architecture, special)


def with_given(given: list[int], answer: list[int]) -> tuple[list[int], list[bool]]:
    """An answer with the given tokens inserted, up to the first place that it does not fill; and which are given."""
    predicted = iter(answer)
    row = [*takewhile(lambda token: token >= 0, (next(predicted, -1) if t == IGNORE else t for t in given)), *predicted]
    return row, [token != IGNORE for token in given[: len(row)]] + [False] * (len(row) - len(given))


def labels(batch: Batch, tokenizer: Tokenizer) -> dict[str, list[list[str]]]:
    """The tokens of a batch as labels of its attention maps, without padding and without the final <eos> of answers."""
    pad, eos = tokenizer.special.pad, tokenizer.special.eos
    found: dict[str, list[list[str]]] = {}
    for side, ids, skipped in (("source", batch.src, (pad,)), ("target", batch.tgt, (pad, eos))):
        for row in [] if ids is None else ids.tolist():
            end = max((index + 1 for index, token in enumerate(row) if token not in skipped), default=1)
            found.setdefault(side, []).append(tokenizer.tokens(row[:end]))  # at least one: T5 starts from padding
    return found
