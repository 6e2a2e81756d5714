"""Beam search against all possible texts, and when it stops. Against transformers' own: test_huggingface.py.

A table model gives random logits to every history, so nothing about the search can be guessed from its text.
"""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.generation.beam import Beams, beam_search
from minitx.generation.decode import COMPACT_FROM_ROWS
from minitx.generation.logits_processors import combine_processors
from small_models import keep_of

PAD, EOS = 0, 1
Row = tuple[int, ...]


class History:
    """A cache of the tokens that each beam of each prompt has read, [B, K, T]; of one beam before it branches."""

    ids = torch.empty(0, 1, 0, dtype=torch.long)
    keep: Tensor

    def branch(self, beams: int) -> "History":
        self.ids, self.keep = (part.expand(-1, beams, -1) for part in (self.ids, self.keep))
        return self

    def select(self, prompts: Tensor) -> None:
        self.ids, self.keep = self.ids[prompts], self.keep[prompts]

    def reorder(self, parents: Tensor) -> None:
        self.ids = torch.stack([rows[several] for rows, several in zip(self.ids, parents, strict=True)])

    def alive(self) -> Tensor:
        return torch.tensor(0)

    def compact(self, count: int) -> None:
        assert count == 0


class Table:
    """Random logits for each history of real tokens; counts the rows of each step."""

    def __init__(self, vocabulary: int, seed: int, sharpness: float = 2.0) -> None:
        self.vocabulary, self.seed, self.sharpness = vocabulary, seed, sharpness
        self.known: dict[Row, Tensor] = {}
        self.row_counts: list[int] = []

    def start(self) -> History:
        return History()

    def step(self, ids: Tensor, cache: History, keep: Tensor | None = None) -> Tensor:
        self.row_counts.append(len(ids))
        if not len(cache.ids):
            cache.ids = ids[:, None]
            cache.keep = (torch.ones_like(ids, dtype=torch.bool) if keep is None else keep)[:, None]
        else:
            cache.ids = torch.cat((cache.ids, ids[..., None]), dim=2)
            cache.keep = F.pad(cache.keep, (0, 1), value=True)
        pairs = zip(cache.ids.flatten(0, 1), cache.keep.flatten(0, 1), strict=True)
        return torch.stack([self.logits((*row[kept].tolist(),)) for row, kept in pairs]).view(*cache.ids.shape[:2], -1)

    def logits(self, history: Row) -> Tensor:
        if history not in self.known:
            own = torch.Generator().manual_seed(hash((self.seed, *history)) % 2**31)
            self.known[history] = self.sharpness * torch.randn(self.vocabulary, generator=own)
        return self.known[history]

    def log_probability(self, prompt: Row, text: Row) -> float:
        logs = [self.logits(prompt + text[:place]).log_softmax(dim=0)[token] for place, token in enumerate(text)]
        return float(sum(logs))


def every_text(vocabulary: int, limit: int) -> list[Row]:
    """All possible texts: up to the end, or up to the limit."""
    words = [token for token in range(vocabulary) if token != EOS]
    ended = [(*text, EOS) for size in range(limit) for text in itertools.product(words, repeat=size)]
    return ended + list(itertools.product(words, repeat=limit))


def texts(beams: Beams, prompt: int = 0) -> list[Row]:
    """The texts of one prompt up to their end."""
    rows = [tuple(row) for row in beams.ids[prompt].tolist()]
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]


def search(model: Any, prompts: list[Row], beams: int, limit: int, pad: int = -7, **options: Any) -> Beams:
    keep = keep_of(*map(len, prompts), left=True)
    ids = torch.tensor([[PAD] * (keep.size(1) - len(row)) + [*row] for row in prompts])
    options = {"eos": EOS, "pad": pad, "keep": None if bool(keep.all()) else keep, **options}
    return beam_search(model, ids, num_beams=beams, max_new_tokens=limit, **options)


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 3), st.sampled_from([-0.5, 0.0, 0.7, 1.0, 2.0]))
@settings(max_examples=30)
def test_a_beam_as_wide_as_the_space_finds_the_best(seed: int, vocabulary: int, limit: int, penalty: float) -> None:
    """All of the space, in its order; "never" only gives up when nothing could become better."""
    model, prompt = Table(vocabulary, seed), (2 % vocabulary,)
    space = every_text(vocabulary, limit)
    ranked = sorted((model.log_probability(prompt, text) / len(text) ** penalty, text) for text in space)[::-1]
    found = search(model, [prompt], len(space), limit, length_penalty=penalty, early_stopping="never")
    count = len(space) if penalty >= 0 else 1  # below 0 growing worse is not certain: the best one ends early anyhow
    scores, logs = found.scores[0].tolist(), found.log_probabilities[0].tolist()
    for (score, text), own, log, row in zip(ranked[:count], scores, logs, texts(found), strict=False):
        assert own == pytest.approx(score, abs=1e-4)
        assert log == pytest.approx(model.log_probability(prompt, row), abs=1e-4)
        assert row == text or own == pytest.approx(score, abs=1e-5)


@given(st.integers(0, 10**6), st.integers(3, 4), st.integers(1, 3), st.sampled_from([True, False, "never"]))
@settings(max_examples=20)
def test_a_beam_wider_than_the_space_finds_each_text_once(seed: int, vocabulary: int, limit: int, early: Any) -> None:
    """Empty beams neither end nor count: every text that is returned was found."""
    model, space = Table(vocabulary, seed), every_text(vocabulary, limit)
    options = {"early_stopping": early, "logits_processor": combine_processors([EOS], repetition_penalty=1.5)}
    found, alone = (search(model, each, len(space) + 5, limit, **options) for each in ([(2,), (2, 1)], [(2,)]))
    assert found.scores[0].tolist() == pytest.approx(alone.scores[0].tolist(), abs=1e-5), "padding is not repeated"
    for index, prompt in enumerate([(2,), (2, 1)]):
        count = int((found.lengths[index] > 0).sum())
        own = texts(found, index)[:count]
        assert found.lengths[index, :count].tolist() == [len(text) for text in own]
        assert found.lengths[index, count:].tolist() == [0] * (len(space) + 5 - count)
        assert sorted(own) == sorted(space)
        logs = [model.log_probability(prompt, text) for text in own]
        assert found.log_probabilities[index, :count].tolist() == pytest.approx(logs, abs=1e-4)


def test_the_padding_may_be_written_too_and_is_not_cut_off() -> None:
    """What counts is how long a text is, not what it ends in."""
    model = Rules(4, {(2, *[PAD] * size): {PAD: 0.999} for size in range(5)})
    assert search(model, [(2,)], 2, 4, pad=PAD).ids[0, 0].tolist() == [PAD] * 4
    ending = Rules(4, {(2,): {EOS: 0.999}})
    assert search(ending, [(2,)], 1, 4, pad=PAD).ids.tolist() == [[[EOS]]]
    assert search(ending, [(2,)], 1, 4, pad=EOS).ids.tolist() == [[[EOS]]], "nor is an end that doubles as padding"


class Rules(Table):
    """Given probabilities for given histories; uniform ones elsewhere."""

    def __init__(self, vocabulary: int, rules: dict[Row, dict[int, float]]) -> None:
        super().__init__(vocabulary, 0)
        for history, chances in rules.items():
            rest = (1 - sum(chances.values())) / (vocabulary - len(chances))
            chance = [chances.get(token, rest) for token in range(vocabulary)]
            self.known[history] = torch.tensor(chance).clamp(min=1e-9).log()

    def logits(self, history: Row) -> Tensor:
        return self.known.get(history, torch.zeros(self.vocabulary))


def test_beams_continue_even_if_every_end_is_likelier() -> None:
    """Three ends, two beams: the text that wins begins with the fifth most likely token."""
    rules = {(2,): {EOS: 0.3, 3: 0.28, 4: 0.26, 5: 0.08, 6: 0.07}, (2, 6): {0: 0.999}, (2, 6, 0): {EOS: 0.999}}
    found = search(Rules(7, rules), [(2,)], 2, 3, eos=[EOS, 3, 4], length_penalty=4.0, early_stopping="never")
    assert found.ids[0, 0].tolist() == [6, 0, EOS]


def test_with_a_penalty_below_zero_a_running_beam_may_still_win() -> None:
    """The best score that it can reach is that of its present length, not that of the longest text."""
    rules = {(2,): {3: 0.6, EOS: 0.25, 4: 0.1}, (2, 4): {EOS: 0.999}, (2, 3): {0: 0.999}, (2, 3, 0): {EOS: 0.999}}
    found = search(Rules(6, rules), [(2,)], 2, 20, length_penalty=-1.0, early_stopping="never")
    assert texts(found) == [(EOS,), (3, 0, EOS)]


@pytest.mark.parametrize("penalty", [-5.0, 5.0])
def test_scores_far_from_log_probabilities_are_ranked(penalty: float) -> None:
    """60 tokens without an end have a score of about -60 / 60^penalty, which is finite in fp32."""
    found = search(Rules(6, {}), [(2,)], 2, 60, eos=[], length_penalty=penalty)
    assert found.lengths.tolist() == [[60, 60]]
    expected = found.log_probabilities.double() / 60.0**penalty
    torch.testing.assert_close(found.scores.double(), expected, rtol=1e-5, atol=0.0)


def test_nothing_is_computed_once_nothing_may_change() -> None:
    """No memory is taken for the limit, which is larger than any."""
    model = Rules(5, {(2,): {EOS: 0.999}})
    search(model, [(2,)], 1, 10**15)
    assert len(model.row_counts) == 1
    model = Rules(5, {(2,): {EOS: 0.3, 3: 0.5}, (2, 3): {EOS: 0.4, 4: 0.59}})
    search(model, [(2,)], 2, 6, early_stopping=True)
    assert len(model.row_counts) == 2, "the first two texts have ended, though a running one has a better score"

    # Fewer texts exist than beams: two ends at once, and the same two after token 2.
    def adjust(logits: Tensor, history: Tensor, keep: Tensor | None, written: int) -> Tensor:
        return logits.index_fill(1, torch.tensor([2]), -torch.inf) if written else logits

    table = Table(3, 1)
    found = search(table, [(2,)], 5, 50, eos=[0, 1], logits_processor=adjust)
    assert found.lengths.sort().values.tolist() == [[0, 1, 1, 2, 2]]
    assert len(table.row_counts) == 2


def test_prompts_that_are_settled_leave_the_batch() -> None:
    model = Rules(6, {(2,): {EOS: 0.999}, **{(3, *[4] * size): {4: 0.999} for size in range(9)}})
    prompts = [(2,) if place % 3 else (3,) for place in range(COMPACT_FROM_ROWS)]
    search(model, prompts, 1, 8)
    assert model.row_counts == [COMPACT_FROM_ROWS] + [sum(prompt == (3,) for prompt in prompts)] * 7
