"""Beam search: keep the few most likely beginnings, and tell the best whole sequences. It knows ids only.

Scores, length penalty and early stopping mean what they mean in Hugging Face's `generate`, token for token.

Legend: B batch, K beams, P prompt tokens, T written tokens, C candidates of one step, V vocabulary.
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

NEVER = -1.0e9
"""The score of a sequence that is not there."""


class BeamCache(Protocol):
    """What beam search needs to know of a model's cache."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may appear more than once."""

    def reorder(self, rows: Tensor, since: int) -> None:
        """The same number of rows, each going on from another; they differ from the token `since` on only."""


class Beams(NamedTuple):
    """The best sequences of each prompt, the best one first."""

    ids: Tensor  # [B, K, T], the end included, then padding
    scores: Tensor  # [B, K], log-probability after penalties / length^length_penalty
    log_probabilities: Tensor  # [B, K], of the model itself, before penalties
    lengths: Tensor  # [B, K], 0 where there are fewer than K sequences


@dataclass
class Finished:
    """The best sequences that have ended so far."""

    ids: Tensor  # [B, K, T]
    scores: Tensor  # [B, K]
    logs: Tensor  # [B, K]
    lengths: Tensor  # [B, K], 0 where no sequence stands yet
    hopeful: Tensor  # [B, 1], whether one still running may become better than the worst of these

    @property
    def there(self) -> Tensor:
        """Where a sequence stands [B, K]."""
        return self.lengths > 0

    def take(self, rows: Tensor) -> Finished:
        """Some of the prompts."""
        return Finished(*(part[rows] for part in vars(self).values()))

    def put(self, rows: Tensor, some: Finished) -> None:
        """Write the results of some prompts back."""
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
        model: has `start` and `step`, and a cache with `select` and `reorder`.
        ids: the first tokens to read [B, P].
        source: the arguments of the model's `start`.
        num_beams: beginnings kept at each step, K.
        max_new_tokens: the most tokens to write.
        eos: the id, or the ids, that end a sequence.
        pad: the id written after the end.
        keep: [B, P], False for padding on the left of ids.
        logits_processor: changes the log-probabilities first, depending on the tokens so far.
        length_penalty: sequences are ranked by log-probability / length^length_penalty; above 0 favours long ones.
        early_stopping: True stops as soon as K sequences have ended; False once no beginning, at its present length,
            looks better than the worst of them; "never" once none could become better at any length.
    """
    ends = moved(torch.tensor([eos] if isinstance(eos, int) else [*eos]), ids.device)
    with torch.inference_mode():
        search = _Search(ids, keep, num_beams, max_new_tokens, pad)
        cache: BeamCache = model.start(*source)
        logits = model.step(ids, cache, keep)[:, -1]  # the beams of a prompt begin alike: it is read once
        cache.select(search.items.repeat_interleave(num_beams))
        logits = logits.repeat_interleave(num_beams, dim=0)  # [B K, V]
        for count in range(max_new_tokens):
            own = logs = logits.float().log_softmax(dim=-1)
            if logits_processor is not None:
                logs = logits_processor(logs, search.read, search.keep, count)
            totals = search.summed(logs, search.scores)  # [B, K V]
            enough = min((1 + len(ends)) * num_beams, totals.size(1))  # K go on even if the best ones all end here
            best, places = totals.topk(enough, dim=1)  # [B, C]
            parents, tokens = places // logs.size(1), places % logs.size(1)
            ending = torch.isin(tokens, ends) | (count + 1 == max_new_tokens)
            own = best if logits_processor is None else search.summed(own, search.own).gather(1, places)
            search.finish(best, own, ending, parents, tokens, count, length_penalty, early_stopping)
            if count + 1 == max_new_tokens:
                break
            rows, shared = search.go_on(best + NEVER * ending, own, parents, tokens)
            settled = search.judge(count + 1, max_new_tokens, length_penalty, early_stopping)
            done, since = torch.stack((settled.sum(), shared)).tolist()
            if done == len(settled):
                break
            cache.reorder(rows, since)
            if len(rows) >= COMPACT_FROM_ROWS and 4 * done >= len(settled):
                cache.select(search.drop(remaining_rows(settled, done)))
            logits = model.step(search.read[:, -1:], cache)[:, -1]
        return search.result()


class _Search:
    """What is known between two steps, of the prompts that are still worked on."""

    def __init__(self, ids: Tensor, keep: Tensor | None, beams: int, tokens: int, pad: int) -> None:
        batch, device = ids.size(0), ids.device
        self.beams, self.prompt = beams, ids.size(1)
        self.items = torch.arange(batch, device=device)  # [B], places of the prompts in the whole batch
        self.read = ids.repeat_interleave(beams, dim=0)  # [B K, P + T so far]
        self.keep = None if keep is None else keep.repeat_interleave(beams, dim=0)
        self.scores = torch.full((batch, beams), NEVER, device=device)  # summed log-probabilities
        self.scores[:, 0] = 0.0  # at first one beam speaks for all
        self.own = self.scores  # the same before penalties
        # How many tokens at their beginning two beams share: what they share need not be copied from one to the other.
        self.common = torch.full((batch, beams, beams), self.prompt, device=device)
        self.finished = Finished(
            torch.full((batch, beams, tokens), pad, device=device),
            torch.full((batch, beams), NEVER, device=device),
            torch.full((batch, beams), NEVER, device=device),
            torch.zeros((batch, beams), dtype=torch.long, device=device),
            torch.ones((batch, 1), dtype=torch.bool, device=device),
        )
        self.all = self.finished  # of the whole batch
        self.pad = pad

    def summed(self, logs: Tensor, before: Tensor) -> Tensor:
        """logs [B K, V] of the next token and what stands before it [B, K], together [B, K V]."""
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
        """Keep what ends here, of the K best candidates [B, C], if it is better than what has ended before."""
        finished = self.finished
        welcome = ending & finished.hopeful & (logs > NEVER / 2)
        if early_stopping is True:
            welcome &= ~finished.there.all(dim=1, keepdim=True)
        welcome[:, self.beams :] = False
        scores = torch.where(welcome, logs / (count + 1) ** length_penalty, NEVER)
        finished.scores, order = torch.cat((finished.scores, scores), dim=1).topk(self.beams, dim=1)
        written = self.read[:, self.prompt :].unflatten(0, (-1, self.beams))  # [B, K, T so far]
        ids = torch.full((*logs.shape, finished.ids.size(2)), self.pad, device=logs.device)
        ids[..., :count], ids[..., count] = _gathered(written, parents), tokens
        finished.ids = _gathered(torch.cat((finished.ids, ids), dim=1), order)
        finished.logs = torch.cat((finished.logs, own), dim=1).gather(1, order)
        lengths = torch.where(welcome, count + 1, 0)
        finished.lengths = torch.cat((finished.lengths, lengths), dim=1).gather(1, order)

    def go_on(self, logs: Tensor, own: Tensor, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Let the K best candidates run; returns which row each goes on from, and since when those differ []."""
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

    def judge(self, written: int, max_new_tokens: int, length_penalty: float, early_stopping: bool | str) -> Tensor:
        """Whether nothing can change any more, for each prompt [B]."""
        finished = self.finished
        length = max_new_tokens if early_stopping == "never" and length_penalty > 0.0 else written
        promise = self.scores[:, :1] / length**length_penalty
        worst = finished.scores.amin(dim=1, keepdim=True).masked_fill(~finished.there.all(dim=1, keepdim=True), NEVER)
        running = self.scores[:, :1] > NEVER / 2  # there may be fewer beginnings than beams, or none
        finished.hopeful = finished.hopeful & running & (promise > worst)
        settled = ~finished.hopeful[:, 0]
        return settled | finished.there.all(dim=1) if early_stopping is True else settled

    def drop(self, left: Tensor) -> Tensor:
        """Put all prompts aside but those at these places; returns the rows of those that go on."""
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


def _gathered(sequences: Tensor, places: Tensor) -> Tensor:
    """sequences [B, N, T] at places [B, M] of the second dimension: [B, M, T]."""
    return sequences.gather(1, places[..., None].expand(-1, -1, sequences.size(2)))
