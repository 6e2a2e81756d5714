import itertools
from collections import Counter

import pytest

from minitx.data.tasks import generator
from minitx.data.tasks.recall import distinct
from toy import check_answers, make, spelt


def test_what_is_asked_for_stood_anywhere() -> None:
    task = make("induction", symbols=50, length=(12, 12))
    places = Counter(row.index(row[-1]) for row in spelt(task, *task.question(generator(1), 5000)))
    assert {*places} == {*range(10)}
    assert min(places.values()) > 400


@pytest.mark.parametrize(
    ("symbols", "pairs", "queries"),
    [(2, (1, 1), 1), (10, (5, 5), 5), (64, (4, 4), 2), (256, (3, 4), 4), (40, (2, 12), 3), (12, (1, 6), 6)],
)
def test_values_are_recalled(symbols: int, pairs: tuple[int, int], queries: int) -> None:
    task = make("associative_recall", symbols=symbols, pairs=pairs, queries=queries)
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
