"""Filters and samplers: what remains possible, how often it comes, and that a row's numbers are its own."""

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.generation.sampling import filtered, greedy, sampler, token_at, uniforms

LOGITS = st.lists(st.integers(-60, 60), min_size=2, max_size=12, unique=True).map(lambda row: torch.tensor([row]) / 10)
STRICTEST = [{"top_k": 1}, {"min_p": 1.0}, *({name: x} for name in ("top_p", "temperature") for x in (1e-3, 1e-320))]
TEN = torch.tensor([[1.5, 0.2, -0.4, 2.0, 0.9, -1.0, 0.0, 1.0, 0.4, -torch.inf]])


def seeds(*numbers: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in numbers]


@given(LOGITS, st.sampled_from(STRICTEST))
def test_the_strictest_filters_leave_the_most_likely_token(logits: Tensor, options: dict[str, Any]) -> None:
    assert filtered(logits, **options).sum().item() == pytest.approx(1.0, abs=1e-5)
    assert sampler(seeds(1), logits.device, **options)(logits).equal(greedy(logits))
    assert greedy(logits).item() == logits[0].tolist().index(logits.max())


def test_the_highest_temperature_leaves_possible_tokens_equal_and_top_p_the_fewest_of_equal_ones() -> None:
    assert torch.equal(filtered(TEN, temperature=math.inf), torch.tensor([[1 / 9] * 9 + [0.0]]))
    assert [(filtered(x, top_p=p) > 0).sum() for x, p in ((torch.ones(1, 4), 0.5), (TEN[:, :2] * 20, 1.0))] == [2, 2]


def test_logits_of_half_precision_are_filtered_in_full_and_not_changed() -> None:
    logits = torch.randn(2, 50, generator=seeds(1)[0]).bfloat16()
    before, options = logits.clone(), {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.1}
    assert filtered(logits, **options).dtype == torch.float32  # type: ignore[arg-type]
    assert torch.equal(filtered(logits, **options), filtered(logits.float(), **options))  # type: ignore[arg-type]
    assert torch.equal(logits, before)


def chi_square(counts: Tensor, probabilities: Tensor) -> tuple[float, float]:
    """Pearson's statistic, and six standard deviations above its mean."""
    possible = probabilities > 0
    expected = probabilities[possible].double() * counts.sum()
    freedom = int(possible.sum()) - 1
    return float(((counts[possible] - expected) ** 2 / expected).sum()), freedom + 6 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 4}, {"top_p": 0.7, "temperature": 1.5}, {"min_p": 0.2}, {"temperature": 0.6}], ids=str
)
def test_samples_follow_the_filtered_distribution(options: dict[str, Any]) -> None:
    """Across rows at one step, and along one row over many steps."""
    probabilities, count = filtered(TEN, **options)[0], 2000
    across, along = (sampler(seeds(*numbers), TEN.device, **options) for numbers in (range(count), [1]))
    for sampled in (across(TEN.expand(count, -1)), torch.cat([along(TEN, torch.tensor([0])) for _ in range(count)])):
        counts = sampled.bincount(minlength=10)
        assert counts[probabilities == 0].sum() == 0
        statistic, bound = chi_square(counts, probabilities)
        assert statistic < bound
        if options:  # the statistic distinguishes them from unfiltered samples
            statistic, bound = chi_square(counts, TEN[0].softmax(dim=-1))
            assert statistic > bound


@example([0.0, 0.0, 0.75, 0.25], 0.0)
@example([0.25, 0.75, 0.0, 0.0], 1 - 2.0**-53)
@given(
    st.lists(st.floats(0, 1).map(lambda share: share if share > 0.3 else 0.0), min_size=1, max_size=9).filter(any),
    st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=100)
def test_a_token_is_the_one_at_which_the_sum_exceeds_the_chance(shares: list[float], chance: float) -> None:
    probabilities = torch.tensor([shares]) / sum(shares)
    token = int(token_at(probabilities, torch.tensor([[chance]], dtype=torch.float64)))
    assert probabilities[0, token] > 0
    summed = [0.0, *probabilities[0].double().cumsum(dim=0).tolist()]
    assert summed[token] <= chance * summed[-1] < summed[token + 1]


def test_a_random_number_rounded_to_single_precision_stays_below_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitx.generation.sampling.widest_float", lambda device: torch.float32)
    monkeypatch.setattr(torch, "rand", lambda count, **_: torch.full((count,), 1 - 2**-53, dtype=torch.float64))
    assert next(uniforms(seeds(1), torch.device("cpu"))).item() == 1 - 2**-24
