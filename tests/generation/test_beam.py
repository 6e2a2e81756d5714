"""Beam search against all possible texts, first with tables for models, then with real ones.

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
from minitx.generation.decode import COMPACT_FROM_ROWS, generate
from minitx.generation.logits_processors import combine_processors
from small_models import DECODERS, PAIRINGS, build_tiny, pairwise

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
    size = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (size - len(row)) + [*row] for row in prompts])
    keep = torch.tensor([[False] * (size - len(row)) + [True] * len(row) for row in prompts])
    options = {"eos": EOS, "pad": pad, "keep": None if bool(keep.all()) else keep, **options}
    return beam_search(model, ids, num_beams=beams, max_new_tokens=limit, **options)


# ---- all possible texts ----------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 3), st.sampled_from([-0.5, 0.0, 0.7, 1.0, 2.0]))
@settings(max_examples=30, deadline=None)
def test_a_beam_as_wide_as_the_space_finds_the_best(seed: int, vocabulary: int, limit: int, penalty: float) -> None:
    """All of the space, in its order; "never" only gives up when nothing could become better."""
    model, prompt = Table(vocabulary, seed), (2 % vocabulary,)
    space = every_text(vocabulary, limit)
    ranked = sorted(
        ((model.log_probability(prompt, text) / len(text) ** penalty, text) for text in space), reverse=True
    )
    found = search(model, [prompt], len(space), limit, length_penalty=penalty, early_stopping="never")
    count = len(space) if penalty >= 0 else 1  # below 0 growing worse is not certain: the best one ends early anyhow
    for (score, text), own, log, row in zip(
        ranked[:count], found.scores[0].tolist(), found.log_probabilities[0].tolist(), texts(found), strict=False
    ):
        assert own == pytest.approx(score, abs=1e-4)
        assert log == pytest.approx(model.log_probability(prompt, row), abs=1e-4)
        assert row == text or own == pytest.approx(score, abs=1e-5)


@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([True, False, "never"]))
@settings(max_examples=30, deadline=None)
def test_figures_of_each_text_are_right(seed: int, beams: int, early: Any) -> None:
    """Different texts, each with its own log-probability and score, the best first."""
    model, prompts = Table(6, seed), [(2,), (3, 4), (2, 5, 3)]
    found = search(model, prompts, beams, 5, length_penalty=0.8, early_stopping=early)
    for index, prompt in enumerate(prompts):
        own = texts(found, index)
        assert len({*own}) == beams
        logs = [model.log_probability(prompt, text) for text in own]
        assert found.log_probabilities[index].tolist() == pytest.approx(logs, abs=1e-4)
        scores = [log / len(text) ** 0.8 for log, text in zip(logs, own, strict=True)]
        assert found.scores[index].tolist() == pytest.approx(scores, abs=1e-4)
        assert scores == pytest.approx(sorted(scores, reverse=True), abs=1e-5)


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_one_beam_is_greedy(seed: int, limit: int) -> None:
    model = Table(5, seed)
    ids = torch.tensor([[2], [3], [4]])
    greedy = generate(model, ids, max_new_tokens=limit, eos=EOS, pad=PAD).ids  # type: ignore[arg-type]
    found = beam_search(model, ids, num_beams=1, max_new_tokens=limit, eos=EOS, pad=PAD)  # type: ignore[arg-type]
    for row, own in zip(greedy.tolist(), range(3), strict=True):
        cut = row[: row.index(EOS) + 1] if EOS in row else row
        assert texts(found, own) == [tuple(cut)]


@pytest.mark.parametrize("least", [1, 3, 4])
def test_penalties_are_counted_in_the_scores_and_reach_the_beams(least: int) -> None:
    """The search ranks by scores after penalties; log-probabilities are those of the model."""
    for seed in range(5):
        model = Table(4, seed)
        adjust = combine_processors([EOS], min_new_tokens=least, repetition_penalty=1.3)
        found = search(model, [(2,)], 2, 4, logits_processor=adjust, length_penalty=0.0)
        assert adjust is not None
        ranked = zip(texts(found), found.log_probabilities[0].tolist(), found.scores[0].tolist(), strict=True)
        for text, log, score in ranked:
            assert EOS not in text[:least]
            total = 0.0
            for place, token in enumerate(text):
                history = (2, *text[:place])
                logs = model.logits(history).log_softmax(dim=0)[None]
                total += float(adjust(logs, torch.tensor([history]), None, place)[0, token])
            assert score == pytest.approx(total, abs=1e-4)
            assert log == pytest.approx(model.log_probability((2,), text), abs=1e-4)


@given(st.integers(0, 10**6), st.integers(3, 4), st.integers(1, 3), st.sampled_from([True, False, "never"]))
@settings(max_examples=20, deadline=None)
def test_a_beam_wider_than_the_space_finds_each_text_once(seed: int, vocabulary: int, limit: int, early: Any) -> None:
    """Empty beams neither end nor count: every text that is returned was found."""
    model, space = Table(vocabulary, seed), every_text(vocabulary, limit)
    found = search(model, [(2,), (2, 1)], len(space) + 5, limit, length_penalty=1.0, early_stopping=early)
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
    found = search(model, [(2,)], 2, 4, pad=PAD)
    assert found.ids[0, 0].tolist() == [PAD] * 4
    ending = Rules(4, {(2,): {EOS: 0.999}})
    assert search(ending, [(2,)], 1, 4, pad=PAD).ids.tolist() == [[[EOS]]]
    assert search(ending, [(2,)], 1, 4, pad=EOS).ids.tolist() == [[[EOS]]], "nor is an end that doubles as padding"


# ---- when to stop ----------------------------------------------------------------------------------------------------


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


def test_early_stopping_ends_at_once_and_never_continues() -> None:
    """A text that ends at once has a lower score than a long one, which only "never" finds."""
    sure = {(2, *[3] * size): {3: 0.99} for size in range(2, 7)}
    model = Rules(5, {(2,): {EOS: 0.45, 3: 0.4}, (2, 3): {EOS: 0.01, 3: 0.98}, **sure})
    found = {early: search(model, [(2,)], 1, 6, early_stopping=early) for early in (True, False, "never")}
    assert texts(found[True]) == texts(found[False]) == [(EOS,)]
    model.row_counts.clear()
    assert texts(search(model, [(2,)], 2, 6, early_stopping="never"))[0] == (3,) * 6
    assert len(model.row_counts) == 6


def test_beams_continue_even_if_every_end_is_likelier() -> None:
    """Three ends, two beams: the text that wins begins with the fifth most likely token."""
    model = Rules(
        7, {(2,): {EOS: 0.3, 3: 0.28, 4: 0.26, 5: 0.08, 6: 0.07}, (2, 6): {0: 0.999}, (2, 6, 0): {EOS: 0.999}}
    )
    found = search(model, [(2,)], 2, 3, eos=[EOS, 3, 4], length_penalty=4.0, early_stopping="never")
    assert found.ids[0, 0].tolist() == [6, 0, EOS]


def test_with_a_penalty_below_zero_a_running_beam_may_still_win() -> None:
    """The best score that it can reach is that of its present length, not that of the longest text."""
    rules = {(2,): {3: 0.6, EOS: 0.25, 4: 0.1}, (2, 4): {EOS: 0.999}, (2, 3): {0: 0.999}, (2, 3, 0): {EOS: 0.999}}
    found = search(Rules(6, rules), [(2,)], 2, 20, length_penalty=-1.0, early_stopping="never")
    assert texts(found) == [(EOS,), (3, 0, EOS)]


@pytest.mark.parametrize("penalty", [-5.0, 5.0])
def test_scores_far_from_log_probabilities_are_ranked(penalty: float) -> None:
    """60 tokens without an end have a score of about -60 / 60^penalty, which is finite in fp32."""
    model = Rules(6, {})
    found = search(model, [(2,)], 2, 60, eos=[], length_penalty=penalty)
    assert found.lengths.tolist() == [[60, 60]]
    expected = found.log_probabilities.double() / 60.0**penalty
    torch.testing.assert_close(found.scores.double(), expected, rtol=1e-5, atol=0.0)


def test_nothing_is_computed_once_nothing_can_change() -> None:
    """Memory neither: the limit is larger than any."""
    model = Rules(5, {(2,): {EOS: 0.999}})
    search(model, [(2,)], 1, 10**15)
    assert len(model.row_counts) == 1


def test_nothing_is_computed_without_a_running_beam() -> None:
    """Fewer texts exist than beams: two ends at once, and the same two after token 2."""

    def adjust(logits: Tensor, history: Tensor, keep: Tensor | None, written: int) -> Tensor:
        return logits.index_fill(1, torch.tensor([2]), -torch.inf) if written else logits

    model = Table(3, 1)
    found = search(model, [(2,)], 5, 50, eos=[0, 1], logits_processor=adjust)
    assert found.lengths.sort().values.tolist() == [[0, 1, 1, 2, 2]]
    assert len(model.row_counts) == 2


# ---- other prompts ---------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 10**6),
    st.lists(st.lists(st.integers(2, 5), min_size=1, max_size=4).map(tuple), min_size=1, max_size=9),
    st.integers(1, 4),
    st.sampled_from([True, False, "never"]),
    st.sampled_from([1.0, 1.5]),
)
@settings(max_examples=30, deadline=None)
def test_other_prompts_change_nothing(seed: int, prompts: list[Row], beams: int, early: Any, penalty: float) -> None:
    """Here some prompts leave the batch before others."""
    model = Table(6, seed, sharpness=4.0)
    options = {"early_stopping": early, "logits_processor": combine_processors([EOS], repetition_penalty=penalty)}
    together = search(model, prompts, beams, 6, **options)
    for index, prompt in enumerate(prompts):
        alone = search(model, [prompt], beams, 6, **options)
        assert texts(together, index) == texts(alone)
        for one, other in ((together.scores, alone.scores), (together.log_probabilities, alone.log_probabilities)):
            assert one[index].tolist() == pytest.approx(other[0].tolist(), abs=1e-5)


def test_prompts_that_are_settled_leave_the_batch() -> None:
    """And their results stay what they were."""
    ending = {(2,): {EOS: 0.999}, (3,): {4: 0.999}, **{(3, *[4] * size): {4: 0.999} for size in range(1, 9)}}
    model = Rules(6, ending)
    prompts = [(2,) if place % 3 else (3,) for place in range(COMPACT_FROM_ROWS)]
    found = search(model, prompts, 1, 8)
    assert model.row_counts == [COMPACT_FROM_ROWS] + [sum(prompt == (3,) for prompt in prompts)] * 7
    for index, prompt in enumerate(prompts):
        assert found.ids[index].tolist() == [[EOS, *[-7] * 7] if prompt == (2,) else [4] * 8]


# ---- real models -----------------------------------------------------------------------------------------------------


def without_cache(model: Any, source: tuple[Tensor, ...], prompt: Row, found: list[Row]) -> list[float]:
    """Log-probabilities of texts after a prompt, by one forward."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor([*prompt, *text]) for text in found], batch_first=True)
    with torch.no_grad():
        logs = model(*(part.expand(len(found), -1) for part in source), ids)[:, :-1].log_softmax(dim=-1)
    own = logs.gather(2, ids[:, 1:, None])[:, len(prompt) - 1 :, 0]  # the future, and so padding, is hidden
    return [float(row[: len(text)].sum()) for row, text in zip(own, found, strict=True)]


@pairwise(
    {"options": [{}, {"window": (3, None), "n_kv_heads": 2}], "name,numbering": PAIRINGS, "architecture": DECODERS}
)
def test_a_real_model_finds_the_best_of_all(name: str, numbering: str, architecture: str, options: dict) -> None:
    """Every text of up to three tokens after two prompts, one of them padded."""
    model, space = build_tiny(architecture, name, numbering, vocab_size=4, **options), every_text(4, 3)
    source = (torch.tensor([[2, 3, 0]]),) if architecture == "encoder_decoder" else ()
    prompts, keep = [(2, 3, 2, 2), (3, 0)], torch.tensor([[True] * 4, [False, False, True, True]])
    beams = beam_search(
        model, torch.tensor([[2, 3, 2, 2], [0, 0, 3, 0]]), *(part.expand(2, -1) for part in source), keep=keep,
        num_beams=len(space), max_new_tokens=3, eos=EOS, pad=-7, early_stopping="never",
    )  # fmt: skip
    for index, prompt in enumerate(prompts):
        expected = dict(zip(space, without_cache(model, source, prompt, space), strict=True))
        found = texts(beams, index)
        assert sorted(found) == sorted(space)
        assert beams.log_probabilities[index].tolist() == pytest.approx([expected[text] for text in found], abs=1e-4)
        ranked = sorted((log / len(text) for text, log in expected.items()), reverse=True)
        assert beams.scores[index].tolist() == pytest.approx(ranked, abs=1e-4)
