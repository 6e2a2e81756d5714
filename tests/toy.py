"""The answer of each toy task, in plain Python on the symbols."""

import datetime
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from typing import Any

import pytest
import torch
from babel.dates import format_date, get_date_format
from num2words import num2words
from torch import Tensor

from minitx.data.batch import TensorRecord
from minitx.data.examples import Pairs
from minitx.data.tasks import TASKS, QuestionTask, SequenceTask, Task

STRING_TASKS = sorted(name for name, task in TASKS.items() if issubclass(task, SequenceTask))
"""Those to which any string of symbols is a question."""
SEQUENCE_TASKS = sorted([*STRING_TASKS, "induction"])
QUESTION_TASKS = sorted(name for name, task in TASKS.items() if issubclass(task, QuestionTask))
PAIR_TASKS = sorted(name for name, task in TASKS.items() if task.kind == "pairs" and not hasattr(task, "path"))
PAIR_TASKS.remove("imported_pairs")  # which has no questions
"""Those whose questions are sampled and not read from files."""

SMALL_OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"symbols": 3, "length": (1, 5)} for name in STRING_TASKS},
    "induction": {"symbols": 6, "length": (3, 5)},
    "counting": {"symbols": 40, "length": (1, 9)},
    "parity": {"length": (1, 7)},
    "majority": {"length": (3, 8)},  # both questions of length 2 are held out
    "dyck": {"length": (1, 8), "depth": 3},
    "addition": {"digits": (1, 2)},
    "modular_addition": {"modulus": 19},
    "associative_recall": {"symbols": 8, "pairs": (1, 2), "queries": 1},
    "number_words": {"languages": ("en", "de"), "numbers": (0, 99)},
    "dates": {"languages": ("en", "ja"), "formats": ("short", "full"), "years": (2021, 2021)},
}
"""Options under which a task has a few hundred different questions or a few thousand."""


def make(name: str, **options: object) -> Any:
    return TASKS[name](**options)  # type: ignore[arg-type]


def spelt(task: Task, ids: Tensor, keep: Tensor) -> list[list[str]]:
    """The symbols of each row; padding must be where keep says it is, and nothing else."""
    assert (keep == (torch.arange(keep.size(1)) < keep.sum(dim=1, keepdim=True))).all(), "padding stands on the right"
    assert (ids[~keep] == task.vocabulary.special.pad).all(), "padding is the padding token"
    return [task.vocabulary.tokens(row[real].tolist()) for row, real in zip(ids, keep, strict=True)]


def texts(task: Task, pairs: Pairs) -> list[tuple[str, str]]:
    sides = ([task.vocabulary.decode(row) for row in ids.tolist()] for ids in (pairs.source, pairs.target))
    return [*zip(*sides, strict=True)]


def questions(task: Task, pairs: Pairs) -> list[tuple[str, ...]]:
    return [tuple(question) for question in spelt(task, pairs.source, pairs.source_keep)]


def check_answers(name: str, task: Task, pairs: Pairs) -> None:
    if name not in {*ANSWERS, *TRANSLATIONS}:
        pytest.fail(f"the task {name} has no plain-Python answer: add one to ANSWERS")
    answers = spelt(task, pairs.target, pairs.target_keep)
    for question, answer in zip(spelt(task, pairs.source, pairs.source_keep), answers, strict=True):
        expected = ANSWERS[name](task, question) if name in ANSWERS else TRANSLATIONS[name](task, question, answer)
        assert answer == expected, f"{name} of {' '.join(question)}"


def check_even(found: Iterable[Hashable], possible: Iterable[Hashable]) -> None:
    """All possible outcomes occur and no others, about equally often: within five standard deviations."""
    counts = Counter(found)
    mean = counts.total() / len(counts)
    assert {*counts} == {*possible}
    assert max(abs(count - mean) for count in counts.values()) < 5 * mean**0.5, counts


def same(one: TensorRecord, other: TensorRecord) -> bool:
    return all(torch.equal(*parts) for parts in zip(one, other, strict=True))


def dyck(task: Any, question: list[str]) -> list[str]:
    """A stack machine, which also refuses what is no beginning of a balanced string."""
    opening, closing = "([{<"[: task.kinds], ")]}>"[: task.kinds]
    open_now: list[str] = []
    for bracket in question:
        if bracket in opening:
            open_now.append(closing[opening.index(bracket)])
        else:
            assert open_now.pop() == bracket, question
        assert len(open_now) <= task.depth, question
    return open_now[::-1]


def addition(task: Any, question: list[str]) -> list[str]:
    operands = "".join(question).split("+")
    if task.reverse_operands:
        operands = [operand[::-1] for operand in operands]
    assert task.digits[0] <= min(map(len, operands)) <= max(map(len, operands)) <= task.digits[1]
    one, other = operands
    if task.pad:
        assert len(one) == len(other) == max(len(str(int(one))), len(str(int(other))))
    else:
        assert [one, other] == [str(int(one)), str(int(other))], "no zeros in front"
    total = str(int(one) + int(other))
    return list(total[::-1] if task.reverse else total)


def induction(task: Any, question: list[str]) -> list[str]:
    *before, last = question
    assert len({*before}) == len(before), question
    after = before[before.index(last) + 1 :]
    assert after
    return after


def associative_recall(task: Any, question: list[str]) -> list[str]:
    half = task.symbols // 2
    pairs = sum(int(symbol) >= half for symbol in question) - task.filler  # as many as other values
    shown, asked = question[: 2 * pairs], question[2 * pairs :]
    queries = [symbol for symbol in asked if int(symbol) < half]
    keys, values = shown[0::2], shown[1::2]
    assert task.pairs[0] <= pairs <= task.pairs[1]
    assert len({*keys}) == len(keys) == pairs
    assert len({*queries}) == len(queries) == min(task.queries, pairs)
    assert all(int(key) < half <= int(value) for key, value in zip(keys, values, strict=True))
    return [dict(zip(keys, values, strict=True))[key] for key in queries]


@cache
def words(language: str, number: int) -> str:
    return str(num2words(number, lang=language))


def number_words(task: Any, question: list[str], answer: list[str]) -> list[str]:
    """By the answer: no two numbers have the same words."""
    language, text = "".join(question).split(": ")
    to_words = text.isdigit()
    number = int(text if to_words else "".join(answer))
    assert task.direction in ("both", "to_words" if to_words else "to_digits")
    assert task.numbers[0] <= number <= task.numbers[1]
    both = (str(number), words(language, number))
    assert text == both[not to_words]
    return [*both[to_words]]


def dates(task: Any, question: list[str], answer: list[str]) -> list[str]:
    """By the answer: no two days have the same text."""
    language, text = "".join(question).split(": ")
    day = datetime.date.fromisoformat("".join(answer))
    assert task.years[0] <= day.year <= task.years[1]
    patterns = [re.sub("y+", "y", str(get_date_format(form, language).pattern)) for form in task.formats]  # whole years
    plain = str.maketrans(dict.fromkeys("\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}", " "))
    assert text in {format_date(day, pattern, language).translate(plain) for pattern in patterns}
    return [*day.isoformat()]


ANSWERS: dict[str, Callable[[Any, list[str]], list[str]]] = {
    "copy": lambda task, question: question,
    "reverse": lambda task, question: question[::-1],
    "copy_twice": lambda task, question: question * 2,
    "counting": lambda task, question: [str(number) for number in range(int(question[0]), int(question[1]) + 1)],
    "sort": lambda task, question: sorted(question, key=int),
    "parity": lambda task, question: [str(question.count("1") % 2)],
    "majority": lambda task, question: [str(int(2 * question.count("1") > len(question)))],
    "dyck": dyck,
    "addition": addition,
    "modular_addition": lambda task, question: [str(sum(map(int, question)) % task.modulus)],
    "induction": induction,
    "associative_recall": associative_recall,
}
TRANSLATIONS = {"number_words": number_words, "dates": dates}
