"""Brackets and in-context recall: questions cover what they should, evenly."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.data.tasks import generator
from minitx.data.tasks.recall import distinct
from toy import check_answers, make, spelt


@given(
    kinds=st.integers(1, 4),
    depth=st.integers(1, 6) | st.just(2**20),
    shortest=st.integers(1, 9),
    more=st.integers(0, 9),
)
@settings(max_examples=30, deadline=None)
def test_brackets_are_closed_as_by_a_stack_machine(kinds: int, depth: int, shortest: int, more: int) -> None:
    task = make("dyck", kinds=kinds, depth=depth, length=(shortest, shortest + more))
    pairs = task.answered(*task.question(generator(kinds, depth, shortest), 60))
    check_answers("dyck", task, pairs)
    assert pairs.target.size(1) == task.longest[1] == min(depth, shortest + more)


def beginnings(kinds: int, depth: int, length: int) -> set[tuple[str, ...]]:
    """All beginnings of balanced strings."""
    opening, closing = "([{<"[:kinds], ")]}>"[:kinds]
    found = set()
    for string in itertools.product(opening + closing, repeat=length):
        stack: list[str] = []
        for bracket in string:
            if bracket in opening:
                stack.append(closing[opening.index(bracket)])
            elif not stack or stack.pop() != bracket:
                break
            if len(stack) > depth:
                break
        else:
            found.add(string)
    return found


@pytest.mark.parametrize(("kinds", "depth", "length"), [(1, 3, 5), (2, 2, 4)])
def test_questions_are_all_beginnings_of_balanced_brackets(kinds: int, depth: int, length: int) -> None:
    task = make("dyck", kinds=kinds, depth=depth, length=(length, length))
    assert {tuple(row) for row in spelt(task, *task.question(generator(1), 5000))} == beginnings(kinds, depth, length)


def test_what_is_asked_for_stood_anywhere() -> None:
    task = make("induction", symbols=50, length=(12, 12))
    places = Counter(row.index(row[-1]) for row in spelt(task, *task.question(generator(1), 5000)))
    assert {*places} == {*range(10)}
    assert min(places.values()) > 400


@pytest.mark.parametrize("filler", [0, 7])
@pytest.mark.parametrize(
    ("symbols", "pairs", "queries"),
    [(2, (1, 1), 1), (10, (5, 5), 5), (64, (4, 4), 2), (256, (3, 4), 4), (40, (2, 12), 3), (12, (1, 6), 6)],
)
def test_values_are_recalled(symbols: int, pairs: tuple[int, int], queries: int, filler: int) -> None:
    task = make("associative_recall", symbols=symbols, pairs=pairs, queries=queries, filler=filler)
    sampled = task.question(generator(1), 300)
    check_answers("associative_recall", task, task.answered(*sampled))
    used = {int(symbol) for row in spelt(task, *sampled) for symbol in row}
    assert used == {*range(symbols)}


def test_numbers_of_pairs_and_what_is_asked_for_are_equally_likely() -> None:
    task = make("associative_recall", symbols=32, pairs=(1, 4), queries=2)
    counts: Counter[int] = Counter()
    places: Counter[tuple[int, int]] = Counter()
    for row in spelt(task, *task.question(generator(1), 8000)):
        pairs = sum(int(symbol) >= 16 for symbol in row)
        counts[pairs] += 1
        if pairs == 4:
            keys, asked = row[0:8:2], row[8:]
            places[keys.index(asked[0]), keys.index(asked[1])] += 1
    assert {*counts} == {1, 2, 3, 4}
    assert max(counts.values()) - min(counts.values()) < 250
    assert {*places} == {*itertools.permutations(range(4), 2)}
    assert min(places.values()) > 110


def test_all_choices_of_different_numbers_are_equally_likely() -> None:
    counts = Counter(map(tuple, distinct(24_000, 3, 4, generator(1)).tolist()))
    assert {*counts} == {*itertools.permutations(range(4), 3)}
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1150


def test_the_task_with_so_many_pairs() -> None:
    task = make("associative_recall", symbols=64, pairs=(1, 4), queries=2)
    for pairs, longest in ((1, (3, 1)), (2, (6, 2)), (10, (22, 2))):
        other = task.of_length(pairs)
        assert other.longest == longest
        check_answers("associative_recall", other, other.examples("test", 30))
