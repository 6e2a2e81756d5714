from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.data.splits import SPLITS, content_hash, in_split
from minitx.data.tasks import TASKS, generator, hash_seed
from toy import FEW, PAIR_TASKS, QUESTION_TASKS, SEQUENCE_TASKS, STRING_TASKS, check_answers, make, questions, same


@pytest.mark.parametrize("name", SEQUENCE_TASKS)
@given(symbols=st.integers(2, 30), shortest=st.integers(1, 6), more=st.integers(0, 12), size=st.integers(1, 40))
@settings(max_examples=15, deadline=None)
def test_answers_are_what_plain_python_says(name: str, symbols: int, shortest: int, more: int, size: int) -> None:
    longest = shortest + 2 + more
    symbols = max(symbols, longest - 1) if name == "induction" else symbols  # whose symbols are all different
    task = make(name, symbols=symbols, length=(shortest + 2, longest))
    pairs = task.batch(generator(1), size)
    assert len(pairs) == size
    check_answers(name, task, pairs)


@pytest.mark.parametrize("name", PAIR_TASKS)
def test_a_batch_is_a_function_of_its_seed(name: str) -> None:
    task, twin = make(name), make(name)
    first = task.batch(generator(1, 2, 3), 32)
    task.batch(generator(9), 5)  # what was drawn in between leaves no trace
    torch.manual_seed(99)  # nor does the global generator
    state = torch.get_rng_state()
    assert same(first, task.batch(generator(1, 2, 3), 32))
    assert same(first, twin.batch(generator(1, 2, 3), 32))
    assert not same(first, task.batch(generator(1, 2, 4), 32))
    assert torch.equal(torch.get_rng_state(), state), "which is left alone"


@pytest.mark.parametrize("name", SEQUENCE_TASKS)
def test_all_lengths_and_symbols_occur_equally_often(name: str) -> None:
    task = make(name, symbols=7, length=(3, 8))
    pairs = task.batch(generator(1), 6000)
    lengths = pairs.source_keep.sum(dim=1).bincount(minlength=9)
    assert lengths[:3].sum() == 0
    assert (lengths[3:] > 850).all(), "each of six lengths is near 1000 of 6000"
    symbols = pairs.source[pairs.source_keep].bincount(minlength=task.vocabulary.vocab_size)
    for special in task.vocabulary.special:
        assert symbols[special] == 0
    share = symbols / symbols.sum()
    assert (share[share > 0] - 1 / 7).abs().max() < 0.02
    assert (share > 0).sum() == 7


@pytest.mark.parametrize("name", PAIR_TASKS)
def test_no_example_is_longer_than_the_task_says(name: str) -> None:
    task = make(name, **FEW[name])
    pairs = task.batch(generator(1), 2000)
    longest = int(pairs.source_keep.sum(dim=1).max()), int(pairs.target_keep.sum(dim=1).max())
    assert longest == task.longest
    assert (pairs.source.size(1), pairs.target.size(1)) == longest, "nor wider"


@pytest.mark.parametrize("name", STRING_TASKS)
def test_training_never_sees_what_is_held_out(name: str) -> None:
    task = make(name, symbols=3, length=(1, 5), validation_size=100, test_size=100)
    training, validation, test = parts(task, 50)
    assert len(training | validation | test) == 3 + 9 + 27 + 81 + 243, "every example came up, the held-out ones too"


def parts(task: Any, batches: int = 8) -> list[set[tuple[str, ...]]]:
    """The questions of training, validation and test."""
    held_out = [{*questions(task, task.examples(split))} for split in ("validation", "test")]
    return [{one for n in range(batches) for one in questions(task, task.batch(generator(n), 256))}, *held_out]


@pytest.mark.parametrize("name", PAIR_TASKS)
def test_splits_are_fixed_right_and_apart(name: str) -> None:
    """Held-out sets are always the same, hold nothing twice and are answered in plain Python; no split shares a row."""
    sizes = {"validation_size": 40, "test_size": 60}
    task, twin = make(name, **FEW[name], **sizes), make(name, **FEW[name], **sizes)
    for split, size in (("validation", 40), ("test", 60)):
        first = task.examples(split)  # type: ignore[arg-type]
        task.batch(generator(3), 10)
        assert same(first, twin.examples(split))  # type: ignore[arg-type]
        assert len({*questions(task, first)}) == len(first) <= size
        check_answers(name, task, first)
        assert len(task.examples(split, 7)) == 7  # type: ignore[arg-type]
        assert len(task.examples(split, 1000)) == len(first), "a limit never enlarges a set"  # type: ignore[arg-type]
    training, validation, test = parts(make(name, **FEW[name]))
    assert min(len(training), len(validation), len(test)) > 5
    assert len(training | validation | test) == len(training) + len(validation) + len(test)


FRESH = """
import hashlib, sys
from minitx.data.tasks import TASKS
for name in sys.argv[1:]:
    task, digest = TASKS[name](validation_size=20, test_size=20), hashlib.sha256()
    for split in ("validation", "test"):
        for tensor in task.examples(split):
            digest.update(str(tensor.tolist()).encode())
    print(name, digest.hexdigest())
"""


def test_held_out_sets_are_the_same_in_a_fresh_process() -> None:
    names = [*{*PAIR_TASKS} - {"dates", "number_words"}, "markov"]  # whose splits are those of the same hash
    environment = {**os.environ, "PYTHONHASHSEED": "4321"}
    command = [sys.executable, "-c", FRESH, *names]
    fresh = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    for name, line in zip(names, fresh.splitlines(), strict=True):
        task, digest = make(name, validation_size=20, test_size=20), hashlib.sha256()
        for split in ("validation", "test"):
            for tensor in task.examples(split):
                digest.update(str(tensor.tolist()).encode())
        assert line == f"{name} {digest.hexdigest()}"


@pytest.mark.parametrize("name", SEQUENCE_TASKS)
def test_the_same_task_with_questions_of_one_length(name: str) -> None:
    task = make(name, symbols=8, length=(3, 5), batch_size=3)
    longer = task.of_length(9)
    assert type(longer) is type(task)
    assert (longer.symbols, longer.batch_size) == (8, 3)
    pairs = longer.examples("test", 60)
    assert (pairs.source_keep.sum(dim=1) == 9).all()
    check_answers(name, longer, pairs)
    assert task.length == (3, 5), "the task itself is unchanged"


@pytest.mark.parametrize("name", STRING_TASKS)
def test_held_out_of_one_length_is_held_out_of_all(name: str) -> None:
    pairs = make(name, length=(1, 16)).of_length(4).examples("test", 300)
    assert in_split(content_hash(pairs.source, pairs.source_keep), "test").all()


@pytest.mark.parametrize("name", STRING_TASKS)
def test_a_task_with_one_example_answers_or_says_why_not(name: str) -> None:
    task = make(name, symbols=1, length=(1, 1), validation_size=20, test_size=20)
    answered, refused = {}, []
    for split in SPLITS:
        try:
            pairs = task.batch(generator(1), 4) if split == "training" else task.examples(split)  # type: ignore[arg-type]
            answered[split] = len(pairs)
        except ValueError as error:
            refused.append(str(error))
    assert answered in ({"training": 4}, {"validation": 1}, {"test": 1})
    assert len(refused) == 2
    assert all("data.symbols" in sentence for sentence in refused)


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4))
def test_mixed_numbers_fit_a_seed_and_depend_on_every_part(numbers: list[int]) -> None:
    value = hash_seed(*numbers)
    assert 0 <= value < 2**64
    assert value == hash_seed(*numbers)
    for place in range(len(numbers)):
        changed = [*numbers]
        changed[place] += 1
        assert hash_seed(*changed) != value


def test_mixed_numbers_depend_on_their_order_and_neighbours_are_unrelated() -> None:
    grid = [hash_seed(seed, number, rank) for seed in range(20) for number in range(20) for rank in range(4)]
    assert len(set(grid)) == len(grid)
    bits = [bin(hash_seed(1, number, 0) ^ hash_seed(1, number + 1, 0)).count("1") for number in range(500)]
    assert 30 < sum(bits) / len(bits) < 34, "a neighbour changes half of the 64 bits"


def test_random_numbers_are_a_function_of_all_the_integers() -> None:
    def draw(*numbers: int) -> list[int]:
        return torch.randint(1_000_000, (4,), generator=generator(*numbers)).tolist()

    assert draw(1, 2) == draw(1, 2)
    assert len({tuple(draw(*numbers)) for numbers in ((1, 2), (2, 1), (1,), (1, 3), (1, 2, 0))}) == 5


def test_every_task_of_questions_is_told_in_plain_python() -> None:
    assert {*PAIR_TASKS} == {*FEW}
    assert {*QUESTION_TASKS} < {*PAIR_TASKS} < {*TASKS}


@pytest.mark.parametrize("name", QUESTION_TASKS)
def test_too_few_examples_say_which_option_to_enlarge(name: str) -> None:
    task = make(name)
    keys = [word for word in task.enlarge.replace(",", "").split() if word.startswith("data.")]
    assert keys
    for key in keys:
        assert hasattr(task, key.removeprefix("data."))
