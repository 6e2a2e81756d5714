import itertools
import math

import pytest
import torch

from minitx.data.tasks import Markov, generator
from minitx.data.tasks.base import FIRST_SYMBOL_ID
from minitx.data.tasks.markov import SPREAD_SHARE


@pytest.mark.parametrize(("states", "order"), [(2, 1), (5, 1), (3, 2), (2, 3)])
def test_frequencies_are_those_of_the_chain(states: int, order: int) -> None:
    task = Markov(states=states, order=order, concentration=1.0)
    # Each context of `order` symbols and the symbol after it is a number in base V.
    pieces = (task.batch(generator(1), 3000).ids - FIRST_SYMBOL_ID).unfold(1, order + 1, 1).flatten(0, 1)
    numbers = (pieces * states ** torch.arange(order, -1, -1)).sum(dim=1)
    counts = numbers.bincount(minlength=states ** (order + 1)).view(-1, states).double()
    contexts = counts.sum(dim=1)
    assert ((contexts / contexts.sum() - task.stationary).abs() < 0.02).all()
    deviation = (task.transitions * (1 - task.transitions) / contexts.clamp(min=1)[:, None]).sqrt()
    assert ((counts / contexts.clamp(min=1)[:, None] - task.transitions).abs() < 5 * deviation + 1e-4).all()


def test_the_floor_is_how_much_each_further_symbol_adds() -> None:
    task = Markov(states=3, order=2, concentration=0.7)

    def entropy(length: int) -> float:
        total = 0.0
        for string in itertools.product(range(3), repeat=length):
            chance = float(task.stationary[string[0] * 3 + string[1]])
            for one, two, three in zip(string, string[1:], string[2:], strict=False):
                chance *= float(task.transitions[one * 3 + two, three])
            total -= chance * math.log(chance)
        return total

    assert task.floor == pytest.approx(entropy(6) - entropy(5), rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"states": 30}, {"states": 5, "order": 3}, {"concentration": 0.01}])
def test_the_transitions_are_a_chain_that_stays_as_it_is(options: dict) -> None:
    task = Markov(**options)
    least = SPREAD_SHARE / task.states
    assert (task.transitions >= least).all(), "every transition is possible, at its least probability"
    if options.get("concentration"):
        assert task.transitions.min().item() == pytest.approx(least)
    # After one more symbol a context has lost its first: those that differ in it alone are added.
    flow = (task.stationary[:, None] * task.transitions).view(task.states, -1).sum(dim=0)
    assert torch.allclose(flow, task.stationary)


def test_concentration_says_how_even_the_transitions_are_and_their_seed_which_they_are() -> None:
    rates = [Markov(concentration=concentration).floor for concentration in (0.05, 0.5, 1.0, 5.0, 1000.0)]
    assert rates == sorted(rates)
    assert rates[0] < 0.4
    assert rates[-1] == pytest.approx(math.log(10), abs=1e-3)
    assert torch.equal(Markov().transitions, Markov(batch_size=3, block=7).transitions)
    assert not torch.equal(Markov().transitions, Markov(chain=1).transitions)


@pytest.mark.parametrize(("block", "order"), [(1, 1), (1, 2), (2, 4), (9, 1)])
def test_blocks_are_as_long_as_they_should_be(block: int, order: int) -> None:
    task = Markov(states=2, block=block, order=order)
    assert (task.longest, task.batch(generator(1), 5).ids.shape) == ((0, block), (5, block + 1))
    assert task.final_split == "test"
