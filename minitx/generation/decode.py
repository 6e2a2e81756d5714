"""The decoding loop, token by token, for every decoder. It handles ids only, never text.

Legend: B batch, P prompt tokens, T generated tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.generation.logits_processors import LogitsProcessor
from minitx.generation.sampling import Sampler, greedy
from minitx.hardware.devices import moved

COMPACT_FROM_ROWS = 8
"""Batch size from which it pays to remove rows that have ended."""

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
    tokens, scores = [], []
    for step in steps(model, ids, *source, **options):
        tokens.append(step.ids)
        if step.log_probability is not None:
            scores.append(step.log_probability)
    return Decoded(torch.stack(tokens, dim=1), torch.stack(scores, dim=1).cpu().double().sum(dim=1) if scores else None)


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
        context: maximum number of tokens in the cache. A full cache is replaced by a new one with the last half of the
            context, so a text may exceed the length that the model was trained on. None: no limit.
        scores: whether steps have the log-probability of each token.
        stepper: makes what computes each step of one token after the prompt, from the model, the cache that holds the
            prompt, and the maximum number of tokens of a row; by default as default_step.
    """
    ends = {eos} if isinstance(eos, int) else {*eos}
    total = ids.size(0)
    rows = torch.arange(total, device=ids.device)  # those still in the batch
    ended, done = [False] * total, 0  # which of those have ended, and how many
    mask: Any = None  # the same as a tensor [B], unless none has
    end_ids: Any = moved(torch.tensor([*ends]), ids.device) if ends else None
    parts, prompt_keep = [ids], keep  # all tokens so far
    history, history_keep = ids, keep  # the same in one tensor, where it is needed
    capacity = ids.size(1) + max_new_tokens if context is None else min(context, ids.size(1) + max_new_tokens) + 1
    cache: Any = None
    program: Stepper | None = None
    held = 0  # tokens in the cache
    for count in range(max_new_tokens):
        with torch.inference_mode():
            if logits_processor is not None or (context is not None and held >= context):
                parts = [history := torch.cat(parts, dim=1)]
                history_keep = None if prompt_keep is None else F.pad(prompt_keep, (0, count), value=True)
            if context is not None and held >= context:
                cache, held, program = None, 0, None
                ids = history[:, -max(context // 2, 1) :]
                keep = None if history_keep is None else history_keep[:, -ids.size(1) :]
            if cache is None:
                cache = model.start(*source)
                logits = model.step(ids, cache, keep)[:, -1]
            else:
                if program is None:
                    program = stepper(model, cache, capacity) if stepper else default_step(model, cache)
                logits = program(ids)[:, -1]
            held += ids.size(1)
            processed = logits if logits_processor is None else logits_processor(logits, history, history_keep, count)
            new = sampler(processed, rows)
            fed = given[rows, count] if given is not None and count < given.size(1) else None
            new = new if fed is None else torch.where(fed < 0, new, fed)
            log_probability = None
            if scores:
                log_probability = -F.cross_entropy(logits.float(), new, reduction="none")
                if logits_processor is not None:  # NaN where it leaves no token, as for NaN logits: no step waits
                    impossible = processed.gather(1, new[:, None])[:, 0] == -torch.inf
                    log_probability = log_probability.masked_fill(impossible, torch.nan)
                log_probability = log_probability if fed is None else log_probability.masked_fill(fed >= 0, 0.0)
            if done:
                new = new.masked_fill(mask, pad)
                log_probability = None if log_probability is None else log_probability.masked_fill(mask, 0.0)
            step = DecodeStep(new, log_probability)
            if len(rows) < total:
                step = _scattered(step, rows, total, pad)
            if ends:
                ended = [before or token in ends for before, token in zip(ended, new.tolist(), strict=True)]
                if sum(ended) > done:
                    just_ended = (new[:, None] == end_ids).any(dim=1)
                    done, mask = sum(ended), just_ended if mask is None else mask | just_ended
            last = done == len(rows) or count + 1 == max_new_tokens
            if not last and stepper is None and len(rows) >= COMPACT_FROM_ROWS and 4 * done >= len(rows):
                left = remaining_rows(mask, done)
                cache.select(left)
                new, rows, parts = new[left], rows[left], [torch.cat(parts, dim=1)[left]]
                prompt_keep = None if prompt_keep is None else prompt_keep[left]
                ended, done, mask = [False] * len(left), 0, None
                source = tuple(part[left] for part in source)
            ids, keep = new[:, None], None
            parts.append(ids)
        yield step
        if last:
            return


def default_step(model: DecodableModel, cache: Any) -> Stepper:
    """The model's own step, or where the extra is there its replay, which gives the same logits sooner."""
    extra = find_spec("minitx.compilation")
    if extra and extra.origin:  # an empty folder is found too
        return import_module("minitx.compilation.replay").ReplayedStep(model, cache)
    return lambda ids: model.step(ids, cache)


def remaining_rows(ended: Tensor, done: int) -> Tensor:
    """Indices [B - done] of the rows that have not ended, in order; their number is given, so nothing waits for it."""
    return ended.long().argsort(stable=True)[: len(ended) - done]


def _scattered(step: DecodeStep, rows: Tensor, total: int, pad: int) -> DecodeStep:
    """A step of some rows as a step of all; padding elsewhere."""
    ids = step.ids.new_full((total,), pad).index_copy(0, rows, step.ids)
    if step.log_probability is None:
        return DecodeStep(ids, None)
    zeros = step.log_probability.new_zeros(total)
    return DecodeStep(ids, zeros.index_copy(0, rows, step.log_probability))
