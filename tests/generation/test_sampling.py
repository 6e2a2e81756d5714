from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.generation.sampling import filtered, greedy, sampler

LOGITS = st.lists(st.integers(-60, 60), min_size=2, max_size=12, unique=True).map(lambda row: [x / 10 for x in row])


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


def test_rows_of_a_batch_are_drawn_from_their_own_distribution() -> None:
    rows = torch.full((3, 5), -torch.inf)
    rows[torch.arange(3), torch.tensor([4, 0, 2])] = 0.0
    assert sampler(torch.Generator().manual_seed(1))(rows).tolist() == [4, 0, 2]


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
