from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.data.batch import IGNORE
from minitx.data.tasks import generator
from toy import check_answers, make, questions, spelt


@pytest.mark.parametrize("length", [(1, 1), (1, 9), (7, 7)])
def test_the_parity_of_any_length(length: tuple[int, int]) -> None:
    task = make("parity", length=length)
    pairs = task.batch(generator(1), 200)
    check_answers("parity", task, pairs)
    assert task.vocabulary.alphabet == ["0", "1"]


def test_both_parities_are_equally_likely() -> None:
    target = make("parity").batch(generator(1), 4000).target
    assert abs((target == target.max()).double().mean().item() - 0.5) < 0.04


def test_parity_has_no_choice_of_symbols() -> None:
    with pytest.raises(TypeError, match="symbols"):
        make("parity", symbols=3)


@given(kinds=st.integers(1, 4), depth=st.integers(1, 6), shortest=st.integers(1, 9), more=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_brackets_are_closed_as_a_stack_machine_closes_them(kinds: int, depth: int, shortest: int, more: int) -> None:
    task = make("dyck", kinds=kinds, depth=depth, length=(shortest, shortest + more))
    drawn = task.question(generator(kinds, depth, shortest), 60)
    assert {len(row) for row in spelt(task, *drawn)} <= {*range(shortest, shortest + more + 1)}
    pairs = task.answered(*drawn)
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
def test_every_beginning_of_balanced_brackets_comes_up(kinds: int, depth: int, length: int) -> None:
    task = make("dyck", kinds=kinds, depth=depth, length=(length, length))
    drawn = {tuple(row) for row in spelt(task, *task.question(generator(1), 20_000))}
    assert drawn == beginnings(kinds, depth, length)


def test_balanced_questions_stay_and_their_answer_is_empty() -> None:
    task = make("dyck", length=(1, 6))
    pairs = task.batch(generator(1), 2000)
    lengths, answers = pairs.source_keep.sum(dim=1), pairs.target_keep.sum(dim=1)
    assert (answers[lengths == 2] == 0).any()
    assert ((lengths - answers) % 2 == 0).all()
    labels = pairs.frame("decoder_only", task.vocabulary.special).labels[answers == 0]
    assert (labels[labels != IGNORE] == task.vocabulary.special.eos).all(), "the end alone is predicted"


def test_an_encoder_alone_is_not_told_how_many_brackets_are_open() -> None:
    assert make("dyck", depth=16, length=(1, 16)).longest == (16, 16)
    assert not make("dyck", depth=16, length=(1, 16)).aligned


def test_lengths_are_equally_likely_where_a_task_draws_its_own() -> None:
    for name in ("dyck", "parity", "induction"):
        task = make(name, length=(4, 9))
        lengths = task.question(generator(1), 6000)[1].sum(dim=1).bincount(minlength=10)
        assert lengths[:4].sum() == 0
        assert (lengths[4:] > 850).all(), name


@pytest.mark.parametrize(("name", "length"), [("dyck", 7), ("parity", 12), ("induction", 3), ("copy_twice", 6)])
def test_questions_of_one_length(name: str, length: int) -> None:
    task = make(name).of_length(length)
    pairs = task.examples("test", 40)
    assert {*map(len, questions(task, pairs))} == {length}
    check_answers(name, task, pairs)


def test_sorting_keeps_equal_symbols_and_puts_padding_last() -> None:
    task = make("sort", symbols=12, length=(1, 6))
    source, keep = task.padded(torch.tensor([[17, 8, 17, 6, 9, 9], [16, 7, 6, 6, 6, 6]]), torch.tensor([[6], [2]]))
    target, target_keep = task.answer(source, keep)
    assert spelt(task, target, target_keep) == [["0", "2", "3", "3", "11", "11"], ["1", "10"]]


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("dyck", {"kinds": 0}, r"data\.kinds .* got 0"),
        ("dyck", {"kinds": 5}, r"data\.kinds .* got 5"),
        ("dyck", {"depth": 0}, r"data\.depth .* got 0"),
        ("dyck", {"length": (0, 3)}, r"data\.length .* got \[0, 3\]"),
        ("parity", {"length": (3, 2)}, r"data\.length .* got \[3, 2\]"),
        ("copy_twice", {"symbols": 0}, r"data\.symbols .* got 0"),
        ("sort", {"batch_size": 0}, r"data\.batch_size .* got 0"),
        ("copy", {"validation_size": 0}, r"data\.validation_size .* got 0"),
        ("copy", {"test_size": -1}, r"data\.test_size .* got -1"),
        ("induction", {"length": (5, 4)}, r"data\.length .* got \[5, 4\]"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, options: dict, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        make(name, **options)
