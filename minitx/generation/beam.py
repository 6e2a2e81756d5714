"""Beam search on ids. Scores, length penalty and early stopping are those of Hugging Face's `generate`.

A beam is a running sequence; a finished one has an end token. A prompt is settled when its finished ones are final.

Legend: B batch, K beams, P prompt tokens, T generated tokens, C candidates of one step, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.generation.decode import COMPACT_FROM_ROWS, DecodableModel, Stepper, remaining_rows
from minitx.generation.logits_processors import LogitsProcessor
from minitx.hardware.devices import moved

MISSING_SCORE = -1.0e9
"""The log-probability of a running sequence that does not exist; the score of a finished one is then -inf."""


class Beams(NamedTuple):
    """The best sequences of each prompt, the best one first."""

    ids: Tensor  # [B, K, T], the end included, then padding
    scores: Tensor  # [B, K], log-probability after penalties / length^length_penalty; -inf without a sequence
    log_probabilities: Tensor  # [B, K], under the model, before penalties
    lengths: Tensor  # [B, K], 0 for missing sequences


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
    stepper: Callable[[Any, Any, int], Stepper] | None = None,
) -> Beams:
    """Search for the most likely sequences.

    Args:
        model: its cache also has `branch`, which returns a cache of beams, with their `ids` and `keep` [B, K, P + T],
            `select` of prompts, `reorder`, `alive` and `compact`.
        ids: the prompts [B, P]; for this and the other arguments see decode.steps.
        num_beams: number of running beams, K.
        logits_processor: changes log-probabilities.
        stepper: see decode.steps; its number of tokens is that of all beams of a prompt.
        length_penalty: sequences are ranked by log-probability / length^length_penalty; above 0 favours long ones.
        early_stopping: True stops as soon as K sequences are finished; False once no running beam has a better score at
            its current length than the worst of them; "never" once none can reach a better score at any length.
    """
    ends = moved(torch.tensor([eos] if isinstance(eos, int) else [*eos], dtype=torch.long, device="cpu"), ids.device)
    with torch.inference_mode():
        search = _Search(ids, num_beams, max_new_tokens, pad, length_penalty, early_stopping)
        cache: Any = model.start(*source)
        logits = model.step(ids, cache, keep)[:, -1:].expand(-1, num_beams, -1)  # once for all beams of a prompt
        cache = cache.branch(num_beams)
        program = stepper(model, cache, ids.size(1) + num_beams * max_new_tokens) if stepper else None
        for count in range(max_new_tokens):
            last = count + 1 == max_new_tokens
            own = logs = logits.flatten(0, 1).float().log_softmax(dim=-1)  # [B K, V]
            if logits_processor is not None:
                real = None if cache.keep is None else cache.keep.flatten(0, 1)
                logs = logits_processor(logs, cache.ids.flatten(0, 1), real, count)
            totals = search.summed(logs, search.scores)  # [B, K V]
            enough = min((1 + len(ends)) * num_beams, totals.size(1))  # K beams continue even if all ends are likelier
            best, index = totals.topk(enough, dim=1)  # [B, C]
            own = best if logits_processor is None else search.summed(own, search.own).gather(1, index)
            candidates = _Candidates(best, own, index // logs.size(1), index % logs.size(1))
            ending = torch.isin(candidates.tokens, ends) | last
            search.finish(candidates, ending, cache.ids[..., ids.size(1) :])
            if last:
                break
            parents, tokens = search.advance(candidates._replace(logs=best.add(ending, alpha=MISSING_SCORE)))
            settled = search.settled(count + 1)
            cache.reorder(parents)
            done, alive = torch.stack((settled.sum(), cache.alive())).tolist()
            if done == len(settled):
                break
            cache.compact(alive)
            if stepper is None and num_beams * len(settled) >= COMPACT_FROM_ROWS and 4 * done >= len(settled):
                left = remaining_rows(settled, done)
                search.drop(left)
                cache.select(left)
                tokens = tokens[left]
            logits = program(tokens) if program else model.step(tokens, cache)
        found = search.result()
        return found._replace(ids=found.ids[..., : max(int(found.lengths.max()), 1)])


class _Candidates(NamedTuple):
    """The most likely continuations of each prompt's beams by one token, each part [B, C]."""

    logs: Tensor  # log-probabilities after penalties
    own: Tensor  # log-probabilities under the model
    parents: Tensor  # the beam that each continues
    tokens: Tensor


class _Search:
    """The state between two steps, of the prompts that are not settled; see beam_search for the arguments."""

    def __init__(
        self, ids: Tensor, beams: int, tokens: int, pad: int, length_penalty: float, early_stopping: bool | str
    ) -> None:
        batch, device = ids.size(0), ids.device
        self.beams, self.tokens, self.pad = beams, tokens, pad
        self.length_penalty, self.early_stopping = length_penalty, early_stopping
        self.items = torch.arange(batch, device=device)  # [B], indices of the prompts in the whole batch
        missing = torch.full((batch, beams), MISSING_SCORE, dtype=torch.float32, device=device)
        self.scores = missing.clone()  # summed log-probabilities
        self.scores[:, 0] = 0.0  # the beams are equal at first, so one represents all
        self.own = self.scores  # the same before penalties
        self.all = Beams(  # finished sequences of the whole batch
            torch.empty((batch, beams, 0), dtype=torch.long, device=device),
            torch.full_like(missing, -torch.inf),
            missing,
            torch.zeros((batch, beams), dtype=torch.long, device=device),
        )
        self.finished = self.all  # of the prompts that are not settled
        self.improvable = torch.ones((batch, 1), dtype=torch.bool, device=device)  # a running beam can still be better

    def summed(self, logs: Tensor, before: Tensor) -> Tensor:
        """Log-probabilities [B K, V] of the next token plus those of the tokens before it [B, K]: [B, K V]."""
        return (logs.unflatten(0, (-1, self.beams)) + before[..., None]).flatten(1)

    def finish(self, candidates: _Candidates, ending: Tensor, generated: Tensor) -> None:
        """Add the ending ones among the K best candidates, if they are better than the finished sequences.

        generated [B, K, T so far] are the tokens of the running beams.
        """
        (logs, own, parents, tokens), finished, count = candidates, self.finished, generated.size(2)
        accepted = ending & self.improvable & (logs > MISSING_SCORE / 2)
        if self.early_stopping is True:
            accepted &= finished.scores[:, -1:] == -torch.inf  # until there are K
        accepted[:, self.beams :] = False
        scores = torch.where(accepted, logs / (count + 1) ** self.length_penalty, -torch.inf)
        scores, order = torch.cat((finished.scores, scores), dim=1).topk(self.beams, dim=1)
        ids = torch.cat((generated.take_along_dim(parents[..., None], dim=1), tokens[..., None]), dim=2)
        ids = torch.cat((F.pad(finished.ids, (0, 1), value=self.pad), ids), dim=1)
        self.finished = Beams(
            ids.take_along_dim(order[..., None], dim=1),
            scores,
            torch.cat((finished.log_probabilities, own), dim=1).gather(1, order),
            torch.cat((finished.lengths, torch.where(accepted, count + 1, 0)), dim=1).gather(1, order),
        )

    def advance(self, candidates: _Candidates) -> tuple[Tensor, Tensor]:
        """Make the K best candidates the running beams; returns the beam that each continues and its token, [B, K]."""
        self.scores, chosen = candidates.logs.topk(self.beams, dim=1)
        self.own, parents, tokens = (part.gather(1, chosen) for part in candidates[1:])  # [B, K]
        return parents, tokens

    def settled(self, generated: int) -> Tensor:
        """Whether the finished sequences are final, for each prompt [B], after this number of tokens."""
        finished, best = self.finished, self.scores[:, :1]
        length = self.tokens if self.early_stopping == "never" and self.length_penalty > 0.0 else generated
        worst = finished.scores[:, -1:]  # -inf while there are fewer than K
        running = best > MISSING_SCORE / 2  # there may be fewer sequences than beams, or none
        self.improvable = self.improvable & running & (best / length**self.length_penalty > worst)
        final = ~self.improvable | (worst > -torch.inf) if self.early_stopping is True else ~self.improvable
        return final[:, 0]

    def drop(self, left: Tensor) -> None:
        """Remove all prompts but those at these indices."""
        self.all = self.result()
        self.items, self.improvable = self.items[left], self.improvable[left]
        self.scores, self.own = self.scores[left], self.own[left]
        self.finished = Beams(*(part[left] for part in self.finished))

    def result(self) -> Beams:
        """The best sequences of the whole batch."""
        longer = self.finished.ids.size(2) - self.all.ids.size(2)
        whole = self.all._replace(ids=F.pad(self.all.ids, (0, longer), value=self.pad))
        pairs = zip(whole, self.finished, strict=True)
        return Beams(*(before.index_copy(0, self.items, part) for before, part in pairs))
