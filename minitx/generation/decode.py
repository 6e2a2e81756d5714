"""The decoding loop, token by token, for every decoder. It handles ids only, never text.

Legend: B batch, P prompt tokens, T generated tokens, V vocabulary.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.generation.logits_processors import LogitsProcessor
from minitx.generation.sampling import Sampler, greedy
from minitx.hardware.devices import moved

COMPACT_FROM_ROWS = 8  # minimum batch size for which removing rows that have ended saves time

Stepper = Callable[[Tensor], Tensor]
"""From one new token for each row, [B, 1], to logits [B, 1, V]."""


class DecodableModel(Protocol):
    """The interface of models that generation uses."""

    def start(self, *source: Any) -> Any:
        """A new cache, with the encoded source if the model has one; its `select(rows)` removes all other rows."""

    def step(self, ids: Tensor, cache: Any, keep: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] after new tokens [B, T]."""


class DecodeStep(NamedTuple):
    """One more token for each row."""

    ids: Tensor  # [B], padding after a row's end
    log_probability: Tensor | None  # [B], before processors and filters; 0 after the end; NaN if no token is possible


class Decoded(NamedTuple):
    """The generated tokens of each row."""

    ids: Tensor  # [B, T], the end included, then padding; T is at most max_new_tokens
    log_probabilities: Tensor | None  # [B], of all tokens of a row under the model, in fp64; NaN if it failed


def generate(model: DecodableModel, ids: Tensor, *source: Tensor, **options: Any) -> Decoded:
    """Generate until every row has ended; see steps for the arguments."""
    tokens, logs = zip(*steps(model, ids, *source, **options), strict=True)
    scored = logs[0] is not None
    return Decoded(torch.stack(tokens, dim=1), torch.stack(logs, dim=1).cpu().double().sum(dim=1) if scored else None)


def steps(
    model: DecodableModel,
    ids: Tensor,
    *source: Tensor,
    max_new_tokens: int,
    eos: int | Sequence[int],
    pad: int,
    keep: Tensor | None = None,
    sampler: Sampler = greedy,
    logits_processor: LogitsProcessor | None = None,
    given: Tensor | None = None,
    context: int | None = None,
    scores: bool = False,
    stepper: Callable[[Any, Any, int], Stepper] | None = None,
) -> Iterator[DecodeStep]:
    """Generate one token per row and step, until every row has ended.

    Args:
        ids: the prompt [B, P].
        source: arguments of the model's `start`.
        eos: id or ids that end a row; with none, every row gets max_new_tokens, and no step waits for the device.
        pad: id after the end of a row.
        keep: [B, P], False for padding on the left of ids.
        given: [B, T], tokens that are fed at these steps instead of sampled, with log-probability 0; negative: sampled.
        context: maximum number of tokens in the cache, the last ones of a prompt. A full cache is replaced by a new one
            with the last half of the context, so a text may be longer than those of training. None: no limit.
        scores: whether steps have the log-probability of each token.
        stepper: given the model, the cache that holds the prompt and the maximum number of tokens of a row, returns
            the function that computes each further step of one token; by default that is the model's own step.
    """
    limit = sys.maxsize if context is None else context
    if ids.size(1) > limit:
        ids, keep = ids[:, -limit:], None if keep is None else keep[:, -limit:]
    rows = _Rows(ids.size(0), {eos} if isinstance(eos, int) else {*eos}, ids.device)
    history, history_keep = ids, keep  # all tokens so far
    capacity = min(limit, ids.size(1) + max_new_tokens)
    cache: Any = None
    program: Stepper | None = None
    held = 0  # tokens in the cache
    for count in range(max_new_tokens):
        with torch.inference_mode():
            if held >= limit:
                held, ids = 0, history[:, -max(limit // 2, 1) :]
                keep = None if history_keep is None else history_keep[:, -ids.size(1) :]
            if not held:
                cache, program = model.start(*source), None
                if count:  # the cache before was full
                    real = torch.ones_like(history) if history_keep is None else history_keep
                    cache.before = real[:, : -ids.size(1)].sum(dim=1, keepdim=True)
            elif program is None and stepper:
                program = stepper(model, cache, capacity)
            logits = (program(ids) if program else model.step(ids, cache, keep))[:, -1]
            held += ids.size(1)
            processed = logits if logits_processor is None else logits_processor(logits, history, history_keep, count)
            new = sampler(processed, rows.indices)
            fed = given[rows.indices, count] if given is not None and count < given.size(1) else None
            new = new if fed is None else torch.where(fed < 0, new, fed)
            logs = rows.whole(_log_probability(new, logits, processed, fed), 0.0) if scores else None
            step = DecodeStep(rows.whole(new, pad), logs)
            rows.mark(new if fed is None else new.masked_fill(fed >= 0, -1))  # a given token ends no row
            last = rows.done == len(new) or count + 1 == max_new_tokens
            if not last and stepper is None and len(new) >= COMPACT_FROM_ROWS and 4 * rows.done >= len(new):
                left = rows.remove_ended()
                cache.select(left)
                new, history = new[left], history[left]
                history_keep = None if history_keep is None else history_keep[left]
                source = tuple(part[left] for part in source)
            ids, keep = new[:, None], None
            history = torch.cat((history, ids), dim=1)
            history_keep = None if history_keep is None else F.pad(history_keep, (0, 1), value=True)
        yield step
        if last:
            return


class _Rows:
    """The rows that are in the batch, and which of them have ended."""

    def __init__(self, total: int, ends: set[int], device: torch.device) -> None:
        self.total, self.ends = total, {end for end in ends if end >= 0}  # -1: the vocabulary has no such token
        self.end_ids = moved(torch.tensor([*self.ends], dtype=torch.long, device="cpu"), device)
        self.indices = torch.arange(total, device=device)  # [B], in the batch of the prompts
        self.ended, self.done = [False] * total, 0  # whether each has ended, and how many have
        self.mask: Tensor | None = None  # `ended` as a tensor [B]; None as long as none has

    def mark(self, new: Tensor) -> None:
        """Find the rows that end with their new token [B]; without end ids, nothing waits for the device."""
        if not self.ends:
            return
        self.ended = [before or token in self.ends for before, token in zip(self.ended, new.tolist(), strict=True)]
        if sum(self.ended) > self.done:
            just_ended = (new[:, None] == self.end_ids).any(dim=1)
            self.done, self.mask = sum(self.ended), just_ended if self.mask is None else self.mask | just_ended

    def remove_ended(self) -> Tensor:
        """Remove the rows that have ended, at least one; returns the indices of the others in the batch."""
        assert self.mask is not None
        left = remaining_rows(self.mask, self.done)
        self.indices, self.ended, self.done, self.mask = self.indices[left], [False] * len(left), 0, None
        return left

    def whole(self, values: Tensor, fill: float) -> Tensor:
        """Values [B] as values of all rows of the prompts; `fill` for those that have ended, removed or not."""
        values = values if self.mask is None else values.masked_fill(self.mask, fill)
        if len(values) == self.total:
            return values
        return values.new_full((self.total,), fill).index_copy(0, self.indices, values)


def _log_probability(new: Tensor, logits: Tensor, processed: Tensor, fed: Tensor | None) -> Tensor:
    """Log-probability of each new token under the model; 0 for fed ones, NaN if the processor leaves no token."""
    log_probability = -F.cross_entropy(logits.float(), new, reduction="none")
    if processed is not logits:  # NaN, as from NaN logits: a check would wait for the device
        impossible = processed.gather(1, new[:, None])[:, 0] == -torch.inf
        log_probability = log_probability.masked_fill(impossible, torch.nan)
    return log_probability if fed is None else log_probability.masked_fill(fed >= 0, 0.0)


def remaining_rows(ended: Tensor, done: int) -> Tensor:
    """Indices [B - done] of the rows that have not ended, in order; their number is given, so nothing waits for it."""
    return ended.long().argsort(stable=True)[: len(ended) - done]
