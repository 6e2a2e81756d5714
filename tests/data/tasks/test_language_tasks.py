"""Numbers in words and dates: texts are those of num2words and Babel, splits depend on the content alone."""

import datetime
import random
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.data.tasks import Dates, NumberWords, generator
from minitx.data.tasks.languages import Pieces, number_parts
from minitx.data.text.tokenizer_training import CharTokenizer
from toy import check_answers, date_text, make, words

ENGLISH = (
    r"en: \d+/\d+/\d{4}",
    r"en: \w{3} \d+, \d{4}",
    r"en: (?!\w{3} )\w+ \d+, \d{4}",
    r"en: \w+day, \w+ \d+, \d{4}",
)
"""Short, medium, long and full, but in May."""


def few_of(languages: tuple[str, ...]) -> list[Any]:
    """All languages, of which the fast suite runs those with forms of their own."""
    rich = {"en", "fr_BE", "ja", "pl", "hu"}
    return [one if one in rich else pytest.param(one, marks=pytest.mark.slow) for one in languages]


def texts(task: Any, ids: Tensor) -> list[str]:
    return [task.vocabulary.decode(row.tolist()) for row in ids]


def pairs_of(task: Any, pairs: Any) -> list[tuple[str, str, str]]:
    """Language, question and answer."""
    rows = zip(texts(task, pairs.source), texts(task, pairs.target), strict=True)
    return [(*question.split(": ", 1), answer) for question, answer in rows]  # type: ignore[misc]


def contents(task: Any, pairs: Any) -> set[str]:
    """The numbers in digits, or the dates in ISO 8601."""
    rows = [(text, answer) for _, text, answer in pairs_of(task, pairs)]
    return {text if text.isdigit() else answer for text, answer in rows}


# ---- number_words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", few_of(NumberWords.known))
def test_joined_parts_are_the_words_of_num2words_and_no_two_numbers_have_the_same(language: str) -> None:
    parts, draw = number_parts(language), random.Random(5)
    assert len(parts) == 3000
    some = [*range(0, 1000, 37), *(1000 * draw.randrange(1, 1000) + draw.choice((0, 1, 21, 100)) for _ in range(40))]
    for one in [*some, 1000, 1001, 1100, 2000, 21_000, 999_999, *(draw.randrange(10**6) for _ in range(60))]:
        thousands, rest = divmod(one, 1000)
        assert parts[thousands] + parts[(2000 if thousands else 1000) + rest] == words(language, one), one
    above = {parts[thousands] + parts[2000 + rest] for thousands in range(1, 1000, 7) for rest in range(1000)}
    assert len({*parts[1000:2000]} | above) == 1000 + 143 * 1000


@pytest.mark.parametrize("direction", ["both", "to_words", "to_digits"])
@given(low=st.integers(0, 999_999), more=st.integers(0, 50_000), seed=st.integers(0, 99))
@settings(max_examples=5, deadline=None)
def test_numbers_are_translated_in_either_direction(direction: str, low: int, more: int, seed: int) -> None:
    numbers = (low, min(low + more, 999_999))
    task = make("number_words", languages=("en", "ja"), direction=direction, numbers=numbers)
    source, keep = task.question(generator(seed), 30)
    pairs = task.answered(source, keep)
    for (language, text, answer), (number, index, to_words) in zip(pairs_of(task, pairs), source.tolist(), strict=True):
        assert numbers[0] <= number <= numbers[1]
        assert direction in ("both", "to_words" if to_words else "to_digits")
        assert task.languages[index] == language
        both = (str(number), words(language, number))
        assert (text, answer) == (both if to_words else both[::-1])


def test_lengths_languages_and_directions_are_equally_likely() -> None:
    task = make("number_words", languages=("en", "ja"), numbers=(50, 12_345))
    sampled, _ = task.question(generator(1), 6000)
    digits = [len(str(one)) for one in sampled[:, 0].tolist()]
    assert {*digits} == {2, 3, 4, 5}
    assert all(1400 < digits.count(count) < 1600 for count in (2, 3, 4, 5))
    assert {one for one in sampled[:, 0].tolist() if one < 100} == {*range(50, 100)}
    assert 12_000 < max(sampled[:, 0].tolist()) <= 12_345
    assert (sampled[:, 1:].double().mean(dim=0) - 0.5).abs().max() < 0.03


@pytest.mark.parametrize("direction", ["both", "to_words", "to_digits"])
def test_the_longest_number_determines_the_width(direction: str) -> None:
    task = make("number_words", languages=("en", "de"), direction=direction, numbers=(95, 2100))
    every = torch.tensor([[n, at, way] for n in range(95, 2101) for at in (0, 1) for way in (0, 1)])
    if direction != "both":
        every = every[every[:, 2] == int(direction == "to_words")]
    pairs = task.answered(every, torch.ones_like(every, dtype=torch.bool))
    assert task.longest == tuple(int(keep.sum(dim=1).max()) for keep in (pairs.source_keep, pairs.target_keep))


def test_numbers_of_one_length() -> None:
    task = make("number_words", languages=("en",), batch_size=4, direction="to_digits", numbers=(0, 999))
    for length in (1, 2, 6):
        one = task.of_length(length)
        one.vocabulary = task.vocabulary  # a checkpoint's, trained on smaller numbers
        assert {len(answer) for _, _, answer in pairs_of(one, one.examples("test", 20))} == {length}
    assert task.of_length(1).numbers == (0, 9)
    for length in (0, 7):
        with pytest.raises(ValueError, match=f"1 to 6 digits, got {length}"):
            task.of_length(length)


# ---- dates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", few_of(Dates.known))
def test_dates_are_texts_of_babel_and_each_has_one_day(language: str) -> None:
    task = make("dates", languages=(language,), years=(2019, 2020))
    days: dict[str, str] = {}
    for tag, text, answer in pairs_of(task, task.answered(*task.question(generator(1), 5000))):
        assert tag == language
        assert days.setdefault(text, answer) == answer, "the question determines the answer"
        assert re.search(rf"(?<!\d){answer[:4]}(?!\d)", text), "the year is written in full"
        assert text == text.strip()
        assert not {*text} & {*"\u00a0\u202f\u2009\t\n"}, "spaces are plain"
    assert len({*days.values()}) > 650, "most of the 731 days"
    for text, answer in [*days.items()][:100]:
        day = datetime.date.fromisoformat(answer)
        assert text in {date_text(day, language, form) for form in task.formats}
    assert max(len(text) for text in days) + len(language) + 2 == task.longest[0]


@given(first=st.integers(1000, 9998), more=st.integers(0, 99), seed=st.integers(0, 99))
@settings(max_examples=6, deadline=None)
def test_dates_of_any_years_are_right(first: int, more: int, seed: int) -> None:
    task = make("dates", languages=("en_GB", "hu"), formats=("full", "short"), years=(first, min(first + more, 9998)))
    pairs = task.answered(*task.question(generator(seed), 20))
    check_answers("dates", task, pairs)
    assert pairs.source.size(1) == task.longest[0]


def test_every_day_language_and_format_is_equally_likely() -> None:
    task = make("dates", languages=("en", "ja", "de"), years=(2023, 2024))
    sampled, _ = task.question(generator(1), 9000)
    days = sampled[:, 0] - datetime.date(2023, 1, 1).toordinal()
    assert {*days.tolist()} == {*range(365 + 366)}
    assert days.bincount().max() < 35
    found = texts(task, sampled[:, 1:])
    counts = [sum(one.startswith(f"{language}: ") for one in found) for language in task.languages]
    assert counts == pytest.approx([3000] * 3, abs=200)
    english = [one for one in found if one.startswith("en: ") and "May" not in one]
    shares = [sum(bool(re.fullmatch(form, one)) for one in english) / len(english) for form in ENGLISH]
    assert shares == pytest.approx([0.25] * 4, abs=0.03)


# ---- both ------------------------------------------------------------------------------------------------------------

RANGES = {"number_words": ("numbers", (0, 2000), (0, 999_999)), "dates": ("years", (2020, 2022), (2018, 2024))}


@pytest.mark.parametrize("name", RANGES)
def test_content_held_out_in_one_language_is_held_out_in_all(name: str) -> None:
    option, few, many = RANGES[name]
    narrow = make(name, languages=("en",), **{option: few})
    wide = make(name, languages=("de", "en"), **{option: (0, 5000) if name == "number_words" else many})
    held_out = contents(narrow, narrow.examples("test", 400))
    assert len(held_out) > 40
    for others, least in ((wide.batch(generator(1), 1000), 500), (wide.examples("validation", 300), 50)):
        assert len(contents(wide, others)) > least
        assert not held_out & contents(wide, others)


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("name", RANGES)
def test_languages_and_forms_are_equally_frequent_in_held_out_sets(name: str, split: Any) -> None:
    task = make(name, languages=("en", "ja", "de"))
    found = pairs_of(task, task.examples(split, 900))
    languages = [language for language, _, _ in found]
    assert [languages.count(language) / len(found) for language in task.languages] == pytest.approx(
        [1 / 3] * 3, abs=0.08
    )
    english = [f"en: {text}" for language, text, _ in found if language == "en" and "May" not in text]
    forms = ENGLISH if name == "dates" else (r"en: \d+", r"en: \D+")
    shares = [sum(bool(re.fullmatch(form, text)) for text in english) / len(english) for form in forms]
    assert shares == pytest.approx([1 / len(forms)] * len(forms), abs=0.12)


@pytest.mark.parametrize("name", RANGES)
def test_the_alphabet_covers_all_ranges_and_a_checkpoint_may_bring_another(name: str) -> None:
    option, few, many = RANGES[name]
    task, rich = make(name, languages=("en",), **{option: few}), make(name, languages=("en", "pl"), **{option: many})
    assert make(name, languages=("en", "pl"), **{option: few}).vocabulary.alphabet == rich.vocabulary.alphabet
    other = make(name, languages=("en",), **{option: few})
    other.vocabulary = rich.vocabulary
    one, two = (each.batch(generator(1), 20) for each in (task, other))
    assert pairs_of(task, one) == pairs_of(other, two)
    assert not torch.equal(one.source, two.source)


LETTERS = CharTokenizer().train([["abcäß -"]])


@given(st.lists(st.text("abcäß -", max_size=6), min_size=1, max_size=8), st.data())
@settings(max_examples=40, deadline=None)
def test_pieces_are_joined_without_gaps(strings: list[str], data: st.DataObject) -> None:
    several = st.lists(st.integers(0, len(strings) - 1), min_size=3, max_size=3)
    rows = data.draw(st.lists(several, min_size=1, max_size=6))
    expected = ["".join(strings[number] for number in row) for row in rows]
    width = max(map(len, expected)) + data.draw(st.integers(0, 3))
    ids, keep = Pieces(strings, LETTERS).joined(torch.tensor(rows), width)
    assert [LETTERS.decode(row.tolist()) for row in ids] == expected
    assert (ids[~keep] == LETTERS.special.pad).all()
    assert (keep == (torch.arange(width) < torch.tensor([[len(text)] for text in expected]))).all()


def test_a_character_that_the_vocabulary_does_not_hold_is_named() -> None:
    with pytest.raises(ValueError, match="'z' is not in the tokenizer's alphabet"):
        Pieces(["ab", "az"], LETTERS)
