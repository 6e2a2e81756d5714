import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.data.batch import IGNORE
from minitx.data.tasks import generator
from toy import check_answers, make, spelt


@pytest.mark.parametrize("length", [(1, 1), (1, 9), (7, 7)])
def test_the_parity_of_any_length(length: tuple[int, int]) -> None:
    task = make("parity", length=length)
    check_answers("parity", task, task.batch(generator(1), 200))
    assert task.vocabulary.alphabet == ["0", "1"]


def test_both_parities_are_equally_likely() -> None:
    target = make("parity").batch(generator(1), 4000).target
    assert abs((target == target.max()).double().mean().item() - 0.5) < 0.04


@given(kinds=st.integers(1, 4), depth=st.integers(1, 6), shortest=st.integers(1, 9), more=st.integers(0, 9))
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


def test_the_answer_to_a_balanced_question_is_empty() -> None:
    task = make("dyck", length=(1, 6))
    pairs = task.batch(generator(1), 2000)
    lengths, answers = pairs.source_keep.sum(dim=1), pairs.target_keep.sum(dim=1)
    assert (answers[lengths == 2] == 0).any()
    assert ((lengths - answers) % 2 == 0).all()
    labels = pairs.frame("decoder_only", task.vocabulary.special).labels[answers == 0]
    assert (labels[labels != IGNORE] == task.vocabulary.special.eos).all(), "the end alone is predicted"


def test_sorting_keeps_equal_symbols_and_puts_padding_last() -> None:
    task = make("sort", symbols=12, length=(1, 6))
    source, keep = task.padded(torch.tensor([[17, 8, 17, 6, 9, 9], [16, 7, 6, 6, 6, 6]]), torch.tensor([[6], [2]]))
    target, target_keep = task.answer(source, keep)
    assert spelt(task, target, target_keep) == [["0", "2", "3", "3", "11", "11"], ["1", "10"]]
