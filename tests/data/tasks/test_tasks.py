"""Properties of every task of questions, and the options that tasks refuse."""

import dataclasses
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import toy
from minitx.config.errors import ConfigError
from minitx.config.registry import build
from minitx.data.example_texts import example_texts
from minitx.data.examples import Pairs
from minitx.data.splits import content_hash, in_split
from minitx.data.tasks import TASKS, generator, hash_seed
from parallel_files import make_files
from toy import PAIR_TASKS, QUESTION_TASKS, SMALL_OPTIONS, check_answers, check_even, make, questions, same, spelt


def spans(low: int, high: int, more: int) -> st.SearchStrategy[tuple[int, int]]:
    """Ranges that begin between low and high and reach up to `more` further."""
    return st.builds(lambda first, further: (first, first + further), st.integers(low, high), st.integers(0, more))


OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    **{name: {"symbols": st.integers(2, 30), "length": spans(3, 8, 12)} for name in toy.SEQUENCE_TASKS},
    "induction": {"symbols": st.integers(19, 30), "length": spans(3, 8, 12)},  # all symbols are different
    "dyck": {"kinds": st.integers(1, 4), "depth": st.integers(1, 6) | st.just(2**20), "length": spans(1, 9, 9)},
    "addition": {"digits": spans(1, 25, 4), **{key: st.booleans() for key in ("reverse", "reverse_operands", "pad")}},
    "associative_recall": {"symbols": st.integers(12, 99).map(lambda keys: 2 * keys), "queries": st.integers(1, 4),
                           "pairs": spans(1, 4, 8).filter(lambda pair: pair[1] > 3), "filler": st.integers(0, 20)},
    "number_words": {"languages": st.just(("en", "ja")), "numbers": spans(0, 949_999, 50_000),
                     "direction": st.sampled_from(["both", "to_words", "to_digits"])},
    "dates": {"languages": st.just(("en_GB", "hu")), "years": spans(1000, 9899, 99),
              "formats": st.just(("full", "short"))},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
@given(st.data())
@settings(max_examples=15)
def test_answers_are_those_of_plain_python(name: str, data: st.DataObject) -> None:
    task = make(name, **{key: data.draw(values) for key, values in OPTIONS[name].items()})
    pairs = task.answered(*task.question(generator(data.draw(st.integers(0, 99))), 40))
    check_answers(name, task, pairs)
    assert (pairs.source.size(1), pairs.target.size(1)) == task.longest


@pytest.mark.parametrize(("kinds", "depth", "length"), [(1, 3, 5), (2, 2, 4)])
def test_questions_are_all_beginnings_of_balanced_brackets(kinds: int, depth: int, length: int) -> None:
    task = make("dyck", kinds=kinds, depth=depth, length=(length, length))
    beginnings = set()
    for string in itertools.product(task.vocabulary.alphabet, repeat=length):
        with suppress(AssertionError, IndexError):  # of the stack machine, whose stack is empty or has another bracket
            toy.dyck(task, [*string])
            beginnings.add(string)
    assert {tuple(row) for row in spelt(task, *task.question(generator(1), 5000))} == beginnings


@pytest.mark.parametrize("name", [*PAIR_TASKS, "markov", "text", "masked_text", "translation"])
def test_examples_are_a_function_of_their_seed(name: str, tmp_path: Path) -> None:
    (make_files(tmp_path) / "some.txt").write_text("the cat sat on the mat, " * 40)
    text = {"path": str(tmp_path / "some.txt"), "block": 16, "test_share": 0.2}
    others = {"markov": {}, "text": text, "masked_text": text, "translation": {"path": str(tmp_path)}}
    options = {**SMALL_OPTIONS, **others}[name]
    task, twin = make(name, **options), make(name, **options)
    first = task.batch(generator(1, 2, 3), 32)
    held_out = {split: task.examples(split, 20) for split in ("validation", "test")}
    task.batch(generator(9), 5)  # other batches leave no trace
    torch.manual_seed(99)  # nor does the global generator
    state = torch.get_rng_state()
    assert same(first, task.batch(generator(1, 2, 3), 32))
    assert same(first, twin.batch(generator(1, 2, 3), 32))
    assert not same(first, task.batch(generator(1, 2, 4), 32))
    for split, examples in held_out.items():
        assert same(examples, twin.examples(split, 20))
        assert len(task.examples(split, 3)) == 3
    assert not same(*held_out.values())
    assert torch.equal(torch.get_rng_state(), state), "which does not change"


LENGTHS = {"length": (3, 8)}
ones = methodcaller("count", "1")


@pytest.mark.parametrize(("name", "options", "kinds"), [
    *((name, {"symbols": 7, **LENGTHS}, {len: range(3, 9)}) for name in toy.SEQUENCE_TASKS),
    ("sort", {"symbols": 9, "distinct": True, **LENGTHS}, {len: range(3, 9)}),
    *((name, LENGTHS, {len: range(3, 9)}) for name in ("dyck", "parity")),
    ("induction", {"symbols": 50, "length": (12, 12)}, {lambda row: row.index(row[-1]): range(10)}),
    ("addition", {"digits": (2, 3)}, {lambda row: (row.index("+"), len(row)): [(2, 5), (2, 6), (3, 6), (3, 7)]}),
    ("addition", {"digits": (1, 1)}, {"".join: [f"{one}+{other}" for one in range(10) for other in range(10)]}),
    ("addition", {"digits": (2, 2)}, {lambda row: "".join(row[:2]): map(str, range(10, 100))}),
    ("associative_recall", {"queries": 1}, {lambda row: len(row) // 2: range(1, 5)}),
    ("associative_recall", {"symbols": 8}, {itemgetter(0, 1): itertools.product("0123", "4567")}),
    ("associative_recall", {"symbols": 32, "pairs": (4, 4)},
     {lambda row: tuple(row[0:8:2].index(query) for query in row[8:]): itertools.permutations(range(4), 2)}),
    ("parity", {"length": (4, 4)}, {ones: range(5)}),
    ("majority", {"length": (8, 8)}, {ones: (0, 1, 2, 3, 5, 6, 7, 8)}),  # half of the symbols are no majority
    *((name, {"length": (5, 5)}, {ones: range(6), **{itemgetter(place): "01" for place in range(5)}})
      for name in ("parity", "majority")),
])  # fmt: skip
def test_all_kinds_of_question_are_equally_likely(name: str, options: dict, kinds: dict[Callable, Iterable]) -> None:
    task = make(name, **options)
    rows = spelt(task, *task.question(generator(1), 8000))
    for kind, possible in kinds.items():
        check_even(map(kind, rows), possible)
    if len in kinds and name != "dyck":
        check_even(itertools.chain(*rows), task.vocabulary.alphabet)
    if "distinct" in options:
        assert all(len({*row}) == len(row) for row in rows)


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in PAIR_TASKS), *(("number_words", {"direction": to}) for to in ("to_words", "to_digits"))],
)
def test_the_longest_example_is_as_long_as_specified(name: str, options: dict) -> None:
    task = make(name, **SMALL_OPTIONS[name], **options)
    pairs = task.batch(generator(1), 2000)
    longest = int(pairs.source_keep.sum(dim=1).max()), int(pairs.target_keep.sum(dim=1).max())
    assert longest == task.longest
    assert (pairs.source.size(1), pairs.target.size(1)) == longest, "nor wider"


@pytest.mark.parametrize("name", PAIR_TASKS)
def test_splits_are_right_and_apart(name: str) -> None:
    """Held-out sets hold nothing twice and are answered in plain Python; no split shares a row."""
    task = make(name, **SMALL_OPTIONS[name], validation_size=40, test_size=60)
    training = {one for n in range(4) for one in questions(task, task.batch(generator(n), 256))}
    found: dict[Any, set[tuple[str, ...]]] = {"training": training}
    for split, size in (("validation", 40), ("test", 60)):
        first = task.examples(split)
        found[split] = {*questions(task, first)}
        assert 5 < len(found[split]) == len(first) <= size
        check_answers(name, task, first)
        assert len(task.examples(split, 5)) == 5
        assert len(task.examples(split, 1000)) == len(first), "a limit never enlarges a set"
    assert len(set().union(*found.values())) == sum(map(len, found.values()))


@pytest.mark.parametrize(("name", "mark"), [*zip(QUESTION_TASKS, itertools.cycle(["bos", "eos", "all"]), strict=False)])
def test_bos_and_eos_surround_questions_sampled_and_typed(name: str, mark: str) -> None:
    bos, eos = mark != "eos", mark != "bos"
    plain, framed = make(name, **SMALL_OPTIONS[name]), make(name, **SMALL_OPTIONS[name], add_bos=bos, add_eos=eos)
    one, other = plain.examples("test", 40), framed.examples("test", 40)
    assert same(dataclasses.replace(other, source=one.source, source_keep=one.source_keep), one), "the same answers"
    special, texts = framed.vocabulary.special, example_texts(other, framed.vocabulary, 99)[0]
    assert texts == example_texts(one, plain.vocabulary, 99)[0]
    for row, question in enumerate(texts):
        expected = [*[special.bos] * bos, *one.source[row][one.source_keep[row]].tolist(), *[special.eos] * eos]
        assert other.source[row][other.source_keep[row]].tolist() == expected
        assert framed.divide(framed.vocabulary.encode_question(question))[0] == expected
    assert (framed.reach[0], framed.reach[1]) == (plain.longest[0] + bos + eos, plain.longest[1])
    assert other.source.size(1) == one.source.size(1) + bos + eos


def test_an_answer_longer_than_a_task_says_is_a_bug_of_the_task() -> None:
    task = make("copy", length=(2, 5))
    task.answer = lambda source, keep: (source.repeat(1, 2), keep.repeat(1, 2))
    with pytest.raises(ValueError, match=r"Copy\.answer must .* at most 5 tokens \(longest\), got keep \(4, 10\) of"):
        task.batch(generator(0), 4)
    right, kept = lambda part: part, (lambda keep: keep[:, :1], lambda keep: keep.flip(1), Tensor.int)
    both = itemgetter(0), itemgetter([0]), Tensor.tolist  # of one row
    for pair in (*((right, wrong) for wrong in kept), (Tensor.int, right), *zip(both, both, strict=True)):
        task.answer = lambda *parts, pair=pair: [change(part) for change, part in zip(pair, parts, strict=True)]
        with pytest.raises(ValueError, match=r"must return ids and a boolean keep \[N, T\], padded on the right"):
            task.examples("validation", 4)


@pytest.mark.parametrize("name", [name for name in QUESTION_TASKS if TASKS[name].has_lengths])
def test_every_split_has_the_lengths_of_all_questions(name: str) -> None:
    """In a held-out set, a length with fewer questions than its share has all of them."""
    task = make(name, **SMALL_OPTIONS[name], test_size=200)
    task.answered = lambda source, keep: Pairs(source, keep, source[:, :0], keep[:, :0])  # questions as sampled

    def counts(source: Tensor, keep: Tensor, *_: Tensor) -> Tensor:
        return task.strata(source, keep).bincount(minlength=100)

    ids, keep = task.question(generator(1), 60_000)
    share = counts(ids, keep) / 60_000

    def differs(found: Tensor, size: int) -> Tensor:
        return (found - size * share).abs() > 5 * (size * share * (1 - share)).sqrt()

    assert not differs(counts(*task.batch(generator(2), 20_000)), 20_000).any()
    members = in_split(content_hash(*task.deciding(ids, keep)), "test").nonzero()[:, 0]
    rows = [*dict(zip(content_hash(ids, keep)[members].tolist(), members.tolist(), strict=True)).values()]
    found, every = counts(*task.examples("test")), counts(ids[rows], keep[rows])
    assert found.any()
    assert not (differs(found, 200) & (found != every)).any()


def held_out_sets() -> list[Any]:
    tasks = [make(name, validation_size=20, test_size=20) for name in [*PAIR_TASKS, "markov"]]
    return [part.tolist() for task in tasks for split in ("validation", "test") for part in task.examples(split)]


@pytest.mark.slow
def test_held_out_sets_are_the_same_in_a_fresh_process() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "4321", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", f"from {__name__} import held_out_sets; print(held_out_sets())"]
    assert subprocess.check_output(command, env=environment, text=True) == f"{held_out_sets()}\n"


@pytest.mark.parametrize("name", [name for name in QUESTION_TASKS if TASKS[name].length_option])
def test_the_same_task_with_questions_of_one_length(name: str) -> None:
    option = TASKS[name].length_option
    task = make(name, batch_size=3, **{option: (3, 5)})
    longer = task.of_length(9)
    assert (type(longer), longer.batch_size, longer.trained_lengths) == (type(task), 3, (9, 9))
    pairs = longer.examples("test", 60)
    assert (pairs.source_keep.sum(dim=1) == longer.longest[0]).all()
    check_answers(name, longer, pairs)
    assert task.trained_lengths == getattr(task, option) == (3, 5), "the task itself is unchanged"
    if name == "associative_recall":
        assert task.of_length(1).longest == (3, 1), "no more queries than pairs"


def test_seeds_depend_on_the_order_of_numbers_and_similar_ones_are_unrelated() -> None:
    grid = [hash_seed(seed, number, rank) for seed in range(20) for number in range(20) for rank in range(4)]
    assert len({*grid, hash_seed(1), hash_seed(1, 2), hash_seed(2, 1), hash_seed(1, 2, 0, 0)}) == len(grid) + 4
    bits = [bin(hash_seed(1, number, 0) ^ hash_seed(1, number + 1, 0)).count("1") for number in range(500)]
    assert 30 < sum(bits) / len(bits) < 34, "a neighbour changes half of the 64 bits"
    assert generator(1, 2).initial_seed() == hash_seed(1, 2)


@pytest.mark.parametrize("name", QUESTION_TASKS)
def test_too_few_examples_name_options_to_enlarge(name: str) -> None:
    keys = [word for word in TASKS[name].enlarge.replace(",", "").split() if word.startswith("data.")]
    assert keys
    assert all(hasattr(make(name), key.removeprefix("data.")) for key in keys)


@pytest.mark.parametrize(("name", "options", "sentence"), [
    ("sort", {"symbols": 4, "length": (2, 5), "distinct": True}, r"data\.symbols must be at least 5 .* got 4"),
    ("induction", {"symbols": 4, "length": (3, 6)}, r"data\.symbols must be at least 5, .* got 4"),
    ("induction", {"length": (2, 5)}, r"data\.length.* got \[2, 5\]"),
    ("associative_recall", {"symbols": 7}, r"data\.symbols.* got 7"),
    ("associative_recall", {"pairs": (4, 33)}, r"data\.pairs.* got \[4, 33\]"),
    ("associative_recall", {"queries": 5}, r"data\.queries.* got 5"),
    ("addition", {"digits": (0, 3)}, r"data\.digits must be .* got \[0, 3\]"),
    ("modular_addition", {"modulus": 2, "train_share": 0.7}, r"data\.train_share.* got 0.7"),
    ("modular_addition", {"train_share": float("nan")}, r"data\.train_share: .*above 0 and below 1, got nan"),
    ("markov", {"states": 40, "order": 2}, r"data\.order.* got 40 to the power of 2"),
    ("number_words", {"languages": ("en", "de", "en")}, r"data\.languages .* none twice, got \['en', 'de', 'en'\]"),
    ("number_words", {"languages": ("en", "frr")}, r"data\.languages: unknown language 'frr'; did you mean fr\?"),
    ("number_words", {"numbers": (0, 10**6)}, r"data\.numbers must be .* <= 999999, got \[0, 1000000\]"),
    ("dates", {"formats": ()}, r"data\.formats must name at least one.* got \[\]"),
    ("dates", {"years": (999, 2000)}, r"data\.years must be .* got \[999, 2000\]"),
    ("dates", {"years": (2000, 9999)}, r"data\.years must be .* got \[2000, 9999\]"),
    ("text", {"validation_share": 0.6, "test_share": 0.4}, "nothing for training"),
    ("text", {"isolate": True, "documents": "whole"}, r"data\.isolate: data\.documents whole"),
    ("translation", {"source": "en"}, r"data\.source and data\.target must be two languages, both are en"),
    ("dates", {"formats": ["shrt"]}, r"data\.formats"),
    ("number_words", {"direction": "backwards"}, r"data\.direction"),
    ("number_words", {"languages": "en"}, r"data\.languages"),
    ("parity", {"symbols": 3}, r"unknown key data\.symbols"),
    ("markov", {"concentration": float("nan")}, r"data\.concentration.* got nan"),
    ("text", {"block": 0, "test_share": -1.0}, r"data\.block: .* got 0 .*\ndata\.test_share: .* got -1"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(name: str, options: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build(TASKS, {"name": name, **options}, "data")


@pytest.mark.parametrize("name", [*PAIR_TASKS, "markov", "text", "masked_text", "translation"])
def test_a_task_that_python_makes_checks_its_options_too(name: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.batch_size: .* got 0"):
        make(name, batch_size=0)
