"""Writing token by token: one loop for every model that can. It knows ids only, never text.

Legend: B batch, P prompt tokens, T written tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from minitx.generation.compiled import CompiledStep
from minitx.generation.penalties import Adjust
from minitx.generation.sampling import Chooser, greedy

CROWD = 8
"""Rows from which it pays to leave those out that have ended."""


class Steppable(Protocol):
    """What a model offers to generation."""

    def start(self, *source: Any) -> Any:
        """A fresh cache, after reading a source if the model has one; its `select(rows)` lets go of other rows."""

    def step(self, ids: Tensor, cache: Any, keep: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] after new tokens [B, T]."""


class Written(NamedTuple):
    """One more token for each row."""

    ids: Tensor  # [B]; padding for a row that has ended
    log_probability: Tensor | None  # [B], of the model itself, before penalties and filters; 0 after the end


def stream(model: Steppable, ids: Tensor, *source: Tensor, **options: Any) -> Iterator[Tensor]:
    """The tokens of each row, one column [B] at a time, until every row has ended; arguments as for steps."""
    return (written.ids for written in steps(model, ids, *source, **options))


def generate(model: Steppable, ids: Tensor, *source: Tensor, **options: Any) -> Tensor:
    """All that stream yields, [B, T], T at most max_new_tokens; a row's end is included. Arguments as for steps."""
    return torch.stack(list(stream(model, ids, *source, **options)), dim=1)


def steps(
    model: Steppable,
    ids: Tensor,
    *source: Tensor,
    max_new_tokens: int,
    eos: int | Sequence[int],
    pad: int,
    keep: Tensor | None = None,
    choose: Chooser = greedy,
    adjust: Adjust | None = None,
    context: int | None = None,
    scores: bool = False,
    compiled: bool = False,
) -> Iterator[Written]:
    """Write until every row has ended, one token a row at a time.

    Args:
        model: has `start` and `step`.
        ids: the first tokens to read [B, P].
        source: the arguments of the model's `start`.
        max_new_tokens: the most tokens to write.
        eos: the id, or the ids, that end a row; none writes max_new_tokens, and no device is waited for.
        pad: the id written after a row has ended.
        keep: [B, P], False for padding on the left of ids.
        choose: from logits [B, V] to ids [B].
        adjust: changes the logits first, because of what stands already.
        context: tokens that the model may look back on. Once they are full, it reads the last half anew and goes on,
            so a text may grow past the length that the model was trained on. None: it looks back on everything.
        scores: also tell the log-probability of each token.
        compiled: compile the step for one token: slow at first, faster after; needs the model's `fix`.

    Raises:
        ValueError: max_new_tokens or context below 1; a model that cannot be compiled.
    """
    for name, value in (("max_new_tokens", max_new_tokens), ("context", context)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    ends = [eos] if isinstance(eos, int) else [*eos]
    total = ids.size(0)
    rows = torch.arange(total, device=ids.device)  # those still in the batch
    ended = torch.zeros(total, dtype=torch.bool, device=ids.device)  # of those
    remembers = context is not None or adjust is not None
    read, read_keep = ids, keep  # everything so far
    room = ids.size(1) + max_new_tokens if context is None else min(context, ids.size(1) + max_new_tokens) + 1
    cache: Any = None
    program: CompiledStep | None = None
    held = 0  # tokens in the cache
    done = 0  # rows in the batch that have ended
    for count in range(max_new_tokens):
        with torch.inference_mode():
            if cache is None:
                cache = model.start(*source)
            elif context is not None and held >= context:
                cache, held, program = model.start(*source), 0, None
                ids = read[:, -max(context // 2, 1) :]
                keep = None if read_keep is None else read_keep[:, -ids.size(1) :]
            logits = (program(ids) if program is not None else model.step(ids, cache, keep))[:, -1]
            if compiled and program is None:
                program = CompiledStep(model, cache, room)
            held += ids.size(1)
            new = choose(logits if adjust is None else adjust(logits, read, read_keep, count), rows)
            log_probability = None
            if scores:
                log_probability = logits.float().log_softmax(dim=-1).gather(1, new[:, None])[:, 0]
                log_probability = log_probability.masked_fill(ended, 0.0)
            if done:
                new = new.masked_fill(ended, pad)
            for number, end in enumerate(ends):
                ended = ended | (new == end) if done or number else new == end
            written = Written(new, log_probability)
        yield written if len(rows) == total else _spread(written, rows, total, pad)
        if count + 1 == max_new_tokens:
            return
        done = int(ended.sum()) if ends else 0
        if done == len(rows):
            return
        mostly_done = len(rows) >= CROWD and 4 * done >= len(rows)
        with torch.inference_mode():
            if mostly_done and not compiled:  # what has ended is carried along no longer
                left = running(ended, done)
                cache.select(left)
                new, rows, ended, read = new[left], rows[left], ended[left], read[left]
                read_keep = None if read_keep is None else read_keep[left]
                source = tuple(part[left] for part in source)
            ids, keep = new[:, None], None
            if remembers:
                read = torch.cat((read, ids), dim=1)
                if read_keep is not None:
                    read_keep = torch.cat((read_keep, torch.ones_like(ids, dtype=torch.bool)), dim=1)


def running(ended: Tensor, done: int) -> Tensor:
    """Places [B - done] of the rows that have not ended, in order: their number is known, and nobody waits for it."""
    return ended.long().argsort(stable=True)[: len(ended) - done]


def _spread(written: Written, rows: Tensor, total: int, pad: int) -> Written:
    """What was written for some rows, as columns for all: padding elsewhere."""
    ids = written.ids.new_full((total,), pad).index_copy(0, rows, written.ids)
    if written.log_probability is None:
        return Written(ids, None)
    zeros = written.log_probability.new_zeros(total)
    return Written(ids, zeros.index_copy(0, rows, written.log_probability))
