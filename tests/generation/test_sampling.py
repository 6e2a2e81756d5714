from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.generation.sampling import filtered, greedy, sampler

LOGITS = st.lists(st.integers(-60, 60), min_size=2, max_size=12, unique=True).map(lambda row: [x / 10 for x in row])
CLOSE = 1e-4  # nearer than this to a threshold, rounding decides


def softmax(row: list[float]) -> list[float]:
    """exp(x) / sum of exp(x), where -inf is out."""
    largest = max(row)
    shares = [math.exp(x - largest) for x in row]
    return [share / sum(shares) for share in shares]


def by_temperature(row: list[float], temperature: float) -> list[float]:
    return [x / temperature for x in row]


def by_top_k(row: list[float], k: int) -> list[float]:
    best = sorted(range(len(row)), key=lambda place: row[place], reverse=True)[:k]
    return [x if place in best else -math.inf for place, x in enumerate(row)]


def by_top_p(row: list[float], p: float) -> list[float]:
    shares, kept, total = softmax(row), set(), 0.0
    for place in sorted(range(len(row)), key=lambda place: row[place], reverse=True):
        assume(abs(total - p) > CLOSE or total == 0.0)
        if total >= p:
            break
        kept.add(place)
        total += shares[place]
    return [x if place in kept else -math.inf for place, x in enumerate(row)]


def by_min_p(row: list[float], p: float) -> list[float]:
    shares = softmax(row)
    least = p * max(shares)
    for share in shares:
        assume(abs(share - least) > CLOSE * least or share == max(shares))
    return [x if share >= least else -math.inf for x, share in zip(row, shares, strict=True)]


def agree(row: list[float], expected: list[float], **options: float | None) -> None:
    probabilities = filtered(torch.tensor([row]), **options)[0]  # type: ignore[arg-type]
    assert probabilities.tolist() == pytest.approx(softmax(expected), abs=1e-5)
    dropped = [x == -math.inf for x in expected]
    assert (probabilities == 0).tolist() == dropped, "exactly the filtered tokens can never be drawn"


@given(LOGITS, st.floats(0.3, 5.0))
def test_temperature(row: list[float], temperature: float) -> None:
    agree(row, by_temperature(row, temperature), temperature=temperature)


@given(LOGITS, st.integers(1, 15))
def test_top_k(row: list[float], k: int) -> None:
    agree(row, by_top_k(row, k), top_k=k)


@given(LOGITS, st.floats(0.01, 0.99))
def test_top_p(row: list[float], p: float) -> None:
    agree(row, by_top_p(row, p), top_p=p)


@given(LOGITS, st.floats(0.0, 1.0))
def test_min_p(row: list[float], p: float) -> None:
    agree(row, by_min_p(row, p), min_p=p)


@given(LOGITS, st.floats(0.5, 2.0), st.integers(1, 12), st.floats(0.05, 0.95), st.floats(0.01, 1.0))
@settings(max_examples=200, deadline=None)
def test_all_filters_in_their_order(row: list[float], temperature: float, k: int, p: float, share: float) -> None:
    expected = by_min_p(by_top_p(by_top_k(by_temperature(row, temperature), k), p), share)
    agree(row, expected, temperature=temperature, top_k=k, top_p=p, min_p=share)


@given(st.lists(LOGITS.filter(lambda row: len(row) >= 4).map(lambda row: row[:4]), min_size=2, max_size=5))
@settings(deadline=None)
def test_rows_are_filtered_one_by_one(rows: list[list[float]]) -> None:
    options = {"temperature": 0.8, "top_k": 3, "top_p": 0.9, "min_p": 0.05}
    together = filtered(torch.tensor(rows), **options)  # type: ignore[arg-type]
    for row, probabilities in zip(rows, together, strict=True):
        assert torch.allclose(filtered(torch.tensor([row]), **options)[0], probabilities)  # type: ignore[arg-type]


@given(LOGITS)
@settings(deadline=None)
def test_nothing_is_ever_filtered_away_altogether(row: list[float]) -> None:
    logits = torch.tensor([row])
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0.01}):
        probabilities = filtered(logits, **options)[0]  # type: ignore[arg-type]
        assert probabilities.sum().item() == pytest.approx(1.0, abs=1e-5)
        assert probabilities.argmax() == logits[0].argmax()


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_k": 99}, {"min_p": 0.0}, {"top_p": 1.0}])
def test_filters_at_their_limit_filter_nothing(options: dict) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])
    assert torch.allclose(filtered(logits, **options), logits.softmax(dim=-1))


def test_the_most_likely_tokens_go_together_however_many_are_level() -> None:
    probabilities = filtered(torch.tensor([[1.0, 1.0, 1.0, 1.0]]), top_p=0.5)[0]
    assert (probabilities > 0).sum() == 2, "two of four are the smallest set with half of the probability"


def test_a_masked_token_is_never_drawn() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0]])
    for options in ({}, {"top_k": 3}, {"top_p": 1.0}, {"min_p": 0.0}):
        assert filtered(logits, **options)[0, 1] == 0  # type: ignore[arg-type]


def test_half_precision_logits_are_filtered_in_full() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    options = {"temperature": 0.7, "top_k": 20, "top_p": 0.9}
    assert filtered(logits, **options).dtype == torch.float32  # type: ignore[arg-type]
    assert torch.equal(filtered(logits, **options), filtered(logits.float(), **options))  # type: ignore[arg-type]


def test_the_logits_are_not_changed() -> None:
    logits = torch.randn(3, 9)
    before = logits.clone()
    filtered(logits, top_k=2, top_p=0.5, min_p=0.5)
    assert torch.equal(logits, before)


# ---- drawing ---------------------------------------------------------------------------------------------------------

TEN = torch.tensor([1.5, 0.2, -0.4, 2.0, 0.9, -1.0, 0.0, 1.0, 0.4, -0.2])


def statistic(counts: Tensor, probabilities: Tensor) -> float:
    """Pearson's chi-square: the sum of (observed - expected)^2 / expected over what can occur."""
    possible = probabilities > 0
    expected = probabilities[possible].double() * counts.sum()
    return float(((counts[possible].double() - expected) ** 2 / expected).sum())


def bound(probabilities: Tensor) -> float:
    """Six standard deviations above the mean of the chi-square distribution with that many degrees of freedom."""
    freedom = int((probabilities > 0).sum()) - 1
    return freedom + 6 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.6}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.3}, {"temperature": 2.0, "top_k": 7}],
)
def test_samples_follow_the_filtered_distribution(options: dict) -> None:
    choose = sampler(torch.Generator().manual_seed(3), **options)
    drawn = choose(TEN.expand(20_000, -1))
    probabilities = filtered(TEN[None], **options)[0]
    counts = drawn.bincount(minlength=10)
    assert counts[probabilities == 0].sum() == 0
    assert statistic(counts, probabilities) < bound(probabilities)
    if options:  # and the test would notice: they do not follow the unfiltered one
        assert statistic(counts, TEN.softmax(dim=-1)) > 10 * bound(TEN.softmax(dim=-1))


def test_draws_follow_one_another_independently() -> None:
    choose = sampler(torch.Generator().manual_seed(5))
    level = torch.zeros(1, 4)
    drawn = torch.stack([choose(level) for _ in range(8000)])[:, 0]
    pairs = (drawn[:-1] * 4 + drawn[1:]).bincount(minlength=16)
    even = torch.full((16,), 1 / 16)
    assert statistic(pairs, even) < bound(even)


def test_rows_of_a_batch_are_drawn_from_their_own_distribution() -> None:
    rows = torch.full((3, 5), -torch.inf)
    rows[torch.arange(3), torch.tensor([4, 0, 2])] = 0.0
    assert sampler(torch.Generator().manual_seed(1))(rows).tolist() == [4, 0, 2]


def test_a_seed_makes_drawing_repeatable() -> None:
    def draw(seed: int) -> list[list[int]]:
        choose = sampler(torch.Generator().manual_seed(seed), temperature=1.5, top_p=0.95)
        return [choose(TEN.expand(6, -1)).tolist() for _ in range(5)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_drawing_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    sampler(torch.Generator().manual_seed(8))(TEN[None])
    assert torch.equal(torch.rand(2), expected)


def test_greedy_takes_the_largest() -> None:
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(1))
    assert greedy(logits).tolist() == [max(range(11), key=row.__getitem__) for row in logits.tolist()]


@given(LOGITS)
@settings(deadline=None)
def test_one_candidate_left_is_greedy(row: list[float]) -> None:
    logits = torch.tensor([row])
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert sampler(torch.Generator(), **options)(logits).tolist() == greedy(logits).tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0),
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("top_k", 0),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.5),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_is_drawn(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be") as caught:
        sampler(torch.Generator(), **{name: value})  # type: ignore[arg-type]
    assert str(value) in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_p": 1.0}, {"min_p": 0.0}, {"min_p": 1.0}, {"temperature": 1e-3}]
)
def test_the_ends_of_the_ranges_are_allowed(options: dict) -> None:
    assert 0 <= sampler(torch.Generator(), **options)(TEN[None]).item() < 10
