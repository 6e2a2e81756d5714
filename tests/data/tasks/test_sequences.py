"""Brackets and in-context recall: questions cover what they should."""

import itertools
from contextlib import suppress

import pytest

from minitx.data.tasks import generator
from toy import check_answers, dyck, make, spelt


@pytest.mark.parametrize(("kinds", "depth", "length"), [(1, 3, 5), (2, 2, 4)])
def test_questions_are_all_beginnings_of_balanced_brackets(kinds: int, depth: int, length: int) -> None:
    task = make("dyck", kinds=kinds, depth=depth, length=(length, length))
    beginnings = set()
    for string in itertools.product(task.vocabulary.alphabet, repeat=length):
        with suppress(AssertionError, IndexError):  # of the stack machine, whose stack is empty or has another bracket
            dyck(task, [*string])
            beginnings.add(string)
    assert {tuple(row) for row in spelt(task, *task.question(generator(1), 5000))} == beginnings


@pytest.mark.parametrize("filler", [0, 7])
@pytest.mark.parametrize(
    ("symbols", "pairs", "queries"),
    [(2, (1, 1), 1), (10, (5, 5), 5), (64, (4, 4), 2), (256, (3, 4), 4), (40, (2, 12), 3), (12, (1, 6), 6)],
)
def test_values_are_recalled(symbols: int, pairs: tuple[int, int], queries: int, filler: int) -> None:
    task = make("associative_recall", symbols=symbols, pairs=pairs, queries=queries, filler=filler)
    sampled = task.question(generator(1), 300)
    check_answers("associative_recall", task, task.answered(*sampled))
    assert {symbol for row in spelt(task, *sampled) for symbol in row} == {*task.vocabulary.alphabet}
