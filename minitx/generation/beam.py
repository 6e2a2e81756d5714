"""Beam search on ids. Scores, length penalty and early stopping are those of Hugging Face's `generate`.

A beam is a running sequence; a finished one has an end token. A prompt is settled when no running beam can change its
finished sequences.

Legend: B batch, K beams, P prompt tokens, T generated tokens, C candidates of one step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from minitx.generation.decode import COMPACT_FROM_ROWS, DecodableModel, remaining_rows
from minitx.generation.logits_processors import LogitsProcessor
from minitx.hardware.devices import moved

MISSING_SCORE = -1.0e9
"""The score of a sequence that does not exist."""


class BeamCache(Protocol):
    """The interface of caches that beam search uses."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may appear more than once."""

    def reorder(self, rows: Tensor, since: int) -> None:
        """Replace each row by another one, from which it differs only from token `since` on."""


class Beams(NamedTuple):
    """The best sequences of each prompt, the best one first."""

    ids: Tensor  # [B, K, T], the end included, then padding
    scores: Tensor  # [B, K], log-probability after penalties / length^length_penalty
    log_probabilities: Tensor  # [B, K], under the model, before penalties
    lengths: Tensor  # [B, K], 0 where there are fewer than K sequences


@dataclass
class Finished:
    """The best finished sequences so far."""

    ids: Tensor  # [B, K, T]
    scores: Tensor  # [B, K]
    logs: Tensor  # [B, K]
    lengths: Tensor  # [B, K], 0 where there is none yet
    improvable: Tensor  # [B, 1], whether a running beam can become better than the worst of these

    @property
    def present(self) -> Tensor:
        """Whether there is a sequence [B, K]."""
        return self.lengths > 0

    def take(self, rows: Tensor) -> Finished:
        """Some of the prompts."""
        return Finished(*(part[rows] for part in vars(self).values()))

    def put(self, rows: Tensor, some: Finished) -> None:
        """Store the sequences of some prompts."""
        for whole, part in zip(vars(self).values(), vars(some).values(), strict=True):
            whole[rows] = part


def beam_search(
    model: DecodableModel,
    ids: Tensor,
    *source: Tensor,
    num_beams: int,
    max_new_tokens: int,
    eos: int | Sequence[int],
    pad: int,
    keep: Tensor | None = None,
    logits_processor: LogitsProcessor | None = None,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
) -> Beams:
    """Search for the most likely sequences.

    Args:
        model: with `start` and `step`, and a cache with `select` and `reorder`.
        ids: the prompts [B, P].
        source: arguments of the model's `start`.
        num_beams: number of running beams, K.
        max_new_tokens: maximum number of steps.
        eos: id or ids that end a sequence.
        pad: id after the end of a sequence.
        keep: [B, P], False for padding on the left of ids.
        logits_processor: changes the log-probabilities first, depending on the tokens so far.
        length_penalty: sequences are ranked by log-probability / length^length_penalty; above 0 favours long ones.
        early_stopping: True stops as soon as K sequences are finished; False once no running beam has a better score at
            its current length than the worst of them; "never" once none can reach a better score at any length.
    """
    ends = moved(torch.tensor([eos] if isinstance(eos, int) else [*eos]), ids.device)
    with torch.inference_mode():
        search = _Search(ids, keep, num_beams, max_new_tokens, pad)
        cache: BeamCache = model.start(*source)
        logits = model.step(ids, cache, keep)[:, -1]  # once for all beams of a prompt
        cache.select(search.items.repeat_interleave(num_beams))
        logits = logits.repeat_interleave(num_beams, dim=0)  # [B K, V]
        for count in range(max_new_tokens):
            own = logs = logits.float().log_softmax(dim=-1)
            if logits_processor is not None:
                logs = logits_processor(logs, search.read, search.keep, count)
            totals = search.summed(logs, search.scores)  # [B, K V]
            enough = min((1 + len(ends)) * num_beams, totals.size(1))  # K beams continue even if all ends are likelier
            best, index = totals.topk(enough, dim=1)  # [B, C]
            parents, tokens = index // logs.size(1), index % logs.size(1)
            ending = torch.isin(tokens, ends) | (count + 1 == max_new_tokens)
            own = best if logits_processor is None else search.summed(own, search.own).gather(1, index)
            search.finish(best, own, ending, parents, tokens, count, length_penalty, early_stopping)
            if count + 1 == max_new_tokens:
                break
            rows, shared = search.advance(best + MISSING_SCORE * ending, own, parents, tokens)
            settled = search.settled(count + 1, max_new_tokens, length_penalty, early_stopping)
            done, since = torch.stack((settled.sum(), shared)).tolist()
            if done == len(settled):
                break
            cache.reorder(rows, since)
            if len(rows) >= COMPACT_FROM_ROWS and 4 * done >= len(settled):
                cache.select(search.drop(remaining_rows(settled, done)))
            logits = model.step(search.read[:, -1:], cache)[:, -1]
        return search.result()


class _Search:
    """The state between two steps, of the prompts that are not settled."""

    def __init__(self, ids: Tensor, keep: Tensor | None, beams: int, tokens: int, pad: int) -> None:
        batch, device = ids.size(0), ids.device
        self.beams, self.prompt = beams, ids.size(1)
        self.items = torch.arange(batch, device=device)  # [B], indices of the prompts in the whole batch
        self.read = ids.repeat_interleave(beams, dim=0)  # [B K, P + T so far]
        self.keep = None if keep is None else keep.repeat_interleave(beams, dim=0)
        self.scores = torch.full((batch, beams), MISSING_SCORE, device=device)  # summed log-probabilities
        self.scores[:, 0] = 0.0  # the beams are equal at first, so one represents all
        self.own = self.scores  # the same before penalties
        # The length of the common prefix of two beams, which need not be copied from one to the other.
        self.common = torch.full((batch, beams, beams), self.prompt, device=device)
        self.finished = Finished(
            torch.full((batch, beams, tokens), pad, device=device),
            torch.full((batch, beams), MISSING_SCORE, device=device),
            torch.full((batch, beams), MISSING_SCORE, device=device),
            torch.zeros((batch, beams), dtype=torch.long, device=device),
            torch.ones((batch, 1), dtype=torch.bool, device=device),
        )
        self.all = self.finished  # of the whole batch
        self.pad = pad

    def summed(self, logs: Tensor, before: Tensor) -> Tensor:
        """Log-probabilities [B K, V] of the next token plus those of the tokens before it [B, K]: [B, K V]."""
        return (logs.unflatten(0, (-1, self.beams)) + before[..., None]).flatten(1)

    def finish(
        self,
        logs: Tensor,
        own: Tensor,
        ending: Tensor,
        parents: Tensor,
        tokens: Tensor,
        count: int,
        length_penalty: float,
        early_stopping: bool | str,
    ) -> None:
        """Add the ending ones among the K best candidates [B, C], if they are better than the finished sequences."""
        finished = self.finished
        accepted = ending & finished.improvable & (logs > MISSING_SCORE / 2)
        if early_stopping is True:
            accepted &= ~finished.present.all(dim=1, keepdim=True)
        accepted[:, self.beams :] = False
        scores = torch.where(accepted, logs / (count + 1) ** length_penalty, MISSING_SCORE)
        finished.scores, order = torch.cat((finished.scores, scores), dim=1).topk(self.beams, dim=1)
        generated = self.read[:, self.prompt :].unflatten(0, (-1, self.beams))  # [B, K, T so far]
        ids = torch.full((*logs.shape, finished.ids.size(2)), self.pad, device=logs.device)
        ids[..., :count], ids[..., count] = _gathered(generated, parents), tokens
        finished.ids = _gathered(torch.cat((finished.ids, ids), dim=1), order)
        finished.logs = torch.cat((finished.logs, own), dim=1).gather(1, order)
        lengths = torch.where(accepted, count + 1, 0)
        finished.lengths = torch.cat((finished.lengths, lengths), dim=1).gather(1, order)

    def advance(self, logs: Tensor, own: Tensor, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Make the K best candidates the running beams; returns the row each continues and the first token to copy."""
        self.scores, chosen = logs.topk(self.beams, dim=1)
        own, parents, tokens = (part.gather(1, chosen) for part in (own, parents, tokens))  # [B, K]
        self.own = own
        length = self.read.size(1)
        itself = torch.arange(self.beams, device=parents.device)
        shared = self.common.gather(2, parents[..., None])[..., 0].masked_fill(parents == itself, length)
        of_parents = self.common.gather(1, parents[..., None].expand_as(self.common))
        of_parents = of_parents.gather(2, parents[:, None].expand_as(self.common))
        self.common = of_parents.masked_fill(parents[..., None] == parents[:, None], length)
        rows = (parents + self.beams * torch.arange(len(parents), device=parents.device)[:, None]).flatten()
        self.read = torch.cat((self.read.index_select(0, rows), tokens.flatten()[:, None]), dim=1)
        if self.keep is not None:
            self.keep = torch.cat((self.keep, torch.ones_like(self.keep[:, :1])), dim=1)
        return rows, shared.min()

    def settled(self, generated: int, max_new_tokens: int, length_penalty: float, early_stopping: bool | str) -> Tensor:
        """Whether the finished sequences are final, for each prompt [B]."""
        finished = self.finished
        length = max_new_tokens if early_stopping == "never" and length_penalty > 0.0 else generated
        attainable = self.scores[:, :1] / length**length_penalty
        worst = finished.scores.amin(dim=1, keepdim=True).masked_fill(
            ~finished.present.all(dim=1, keepdim=True), MISSING_SCORE
        )
        running = self.scores[:, :1] > MISSING_SCORE / 2  # there may be fewer sequences than beams, or none
        finished.improvable = finished.improvable & running & (attainable > worst)
        final = ~finished.improvable[:, 0]
        return final | finished.present.all(dim=1) if early_stopping is True else final

    def drop(self, left: Tensor) -> Tensor:
        """Remove all prompts but those at these indices; returns the rows that remain."""
        if self.all is self.finished:
            self.all = Finished(*(part.clone() for part in vars(self.finished).values()))
        self.all.put(self.items, self.finished)
        beams = (self.beams * left[:, None] + torch.arange(self.beams, device=left.device)).flatten()
        self.items, self.common = self.items[left], self.common[left]
        self.scores, self.own = self.scores[left], self.own[left]
        self.read, self.keep = self.read[beams], None if self.keep is None else self.keep[beams]
        self.finished = self.finished.take(left)
        return beams

    def result(self) -> Beams:
        """The best sequences of the whole batch, as long as the longest of them."""
        if self.all is not self.finished:
            self.all.put(self.items, self.finished)
        longest = max(int(self.all.lengths.max()), 1)
        return Beams(self.all.ids[..., :longest], self.all.scores, self.all.logs, self.all.lengths)


def _gathered(sequences: Tensor, index: Tensor) -> Tensor:
    """sequences [B, N, T] at indices [B, M] of the second dimension: [B, M, T]."""
    return sequences.gather(1, index[..., None].expand(-1, -1, sequences.size(2)))
