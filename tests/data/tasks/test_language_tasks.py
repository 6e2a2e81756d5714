"""Numbers in words and dates: said as num2words and Babel say them, held out by what is said."""

from __future__ import annotations

import datetime
import random
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.data.examples import check_architecture
from minitx.data.tasks import Dates, NumberWords, generator
from minitx.data.tasks.languages import number_parts
from toy import check_answers, date_text, make, questions, words

SMALL = {"languages": ("en", "ja"), "batch_size": 4}
RICH = ("en", "fr_BE", "pl", "vi", "ja", "it")


ENGLISH = (
    r"en: \d+/\d+/\d{4}",
    r"en: \w{3} \d+, \d{4}",
    r"en: (?!\w{3} )\w+ \d+, \d{4}",
    r"en: \w+day, \w+ \d+, \d{4}",
)
"""Short, medium, long and full, but in May."""


def few_of(languages: tuple[str, ...]) -> list[Any]:
    """All languages, of which the everyday suite runs those with forms of their own."""
    rich = {"en", "en_GB", "fr_BE", "ja", "pl", "hu"}
    return [one if one in rich else pytest.param(one, marks=pytest.mark.slow) for one in languages]


def texts(task: Any, ids: Tensor) -> list[str]:
    return [task.vocabulary.decode(row.tolist()) for row in ids]


def pairs_of(task: Any, pairs: Any) -> list[tuple[str, str, str]]:
    """Language, question and answer."""
    rows = zip(texts(task, pairs.source), texts(task, pairs.target), strict=True)
    return [(*question.split(": ", 1), answer) for question, answer in rows]  # type: ignore[misc]


def number(said: str, answer: str) -> int:
    return int(said if said.isdigit() else answer)


# ---- number_words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", few_of(NumberWords.known))
def test_parts_put_together_are_what_num2words_says(language: str) -> None:
    parts, draw = number_parts(language), random.Random(5)
    assert len(parts) == 3000
    some = [*range(0, 1000, 37), *(1000 * draw.randrange(1, 1000) + draw.choice((0, 1, 21, 100)) for _ in range(40))]
    for one in [*some, 1000, 1001, 1100, 2000, 21_000, 999_999, *(draw.randrange(10**6) for _ in range(60))]:
        thousands, rest = divmod(one, 1000)
        assert parts[thousands] + parts[(2000 if thousands else 1000) + rest] == words(language, one), one


@pytest.mark.parametrize("language", few_of(NumberWords.known))
def test_no_two_numbers_have_the_same_words(language: str) -> None:
    parts = number_parts(language)
    below = {*parts[1000:2000]}
    above = {parts[thousands] + parts[2000 + rest] for thousands in range(1, 1000, 7) for rest in range(1000)}
    assert len(below | above) == 1000 + 143 * 1000


@pytest.mark.parametrize("direction", ["both", "to_words", "to_digits"])
@given(low=st.integers(0, 999_999), more=st.integers(0, 500_000), seed=st.integers(0, 99))
@settings(max_examples=5, deadline=None)
def test_numbers_are_said_in_either_direction(direction: str, low: int, more: int, seed: int) -> None:
    numbers = (low, min(low + more, 999_999))
    task = make("number_words", languages=("en", "ja", "es"), direction=direction, numbers=numbers)
    source, keep = task.question(generator(seed), 30)
    pairs = task.answered(source, keep)
    check_answers("number_words", task, pairs)
    for (language, said, answer), drawn in zip(pairs_of(task, pairs), source.tolist(), strict=True):
        assert number(said, answer) == drawn[0]
        assert task.languages[drawn[1]] == language
        assert {said, answer} == {str(drawn[0]), words(language, drawn[0])}


def test_lengths_languages_and_directions_are_equally_likely() -> None:
    task = make("number_words", languages=("en", "ja"), numbers=(50, 12_345))
    drawn, _ = task.question(generator(1), 6000)
    digits = [len(str(one)) for one in drawn[:, 0].tolist()]
    assert {count: digits.count(count) // 1000 for count in {*digits}} == {2: 1, 3: 1, 4: 1, 5: 1}
    assert all(1400 < digits.count(count) < 1600 for count in (2, 3, 4, 5))
    assert {one for one in drawn[:, 0].tolist() if one < 100} == {*range(50, 100)}
    assert 12_000 < max(drawn[:, 0].tolist()) <= 12_345
    assert (drawn[:, 1:].double().mean(dim=0) - 0.5).abs().max() < 0.03


@pytest.mark.parametrize("direction", ["both", "to_words", "to_digits"])
def test_the_longest_number_sets_the_width(direction: str) -> None:
    task = make("number_words", languages=("en", "pt_BR"), direction=direction, numbers=(95, 2100))
    every = torch.tensor([[n, at, way] for n in range(95, 2101) for at in (0, 1) for way in (0, 1)])
    if direction != "both":
        every = every[every[:, 2] == int(direction == "to_words")]
    pairs = task.answered(every, torch.ones_like(every, dtype=torch.bool))
    assert task.longest == tuple(int(keep.sum(dim=1).max()) for keep in (pairs.source_keep, pairs.target_keep))


def test_numbers_of_one_length() -> None:
    task = make("number_words", **SMALL, direction="to_digits", numbers=(0, 999))
    for length in (1, 2, 6):
        one = task.of_length(length)
        assert (one.languages, one.direction, one.batch_size) == (("en", "ja"), "to_digits", 4)
        one.vocabulary = task.vocabulary  # a checkpoint's, trained on smaller numbers
        assert {len(answer) for _, _, answer in pairs_of(one, one.examples("test", 20))} == {length}
    assert task.of_length(1).numbers == (0, 9)
    for length in (0, 7):
        with pytest.raises(ValueError, match=f"1 to 6 digits, got {length}"):
            task.of_length(length)


def test_an_encoder_alone_is_refused_even_where_the_longest_are_equally_long() -> None:
    task = make("number_words", languages=("ja",), direction="to_words", numbers=(0, 99_999))
    assert task.longest[0] == task.longest[1]
    with pytest.raises(ValueError, match="encoder_only answers position by position"):
        check_architecture("encoder_only", task.kind, task.longest, task.aligned)


# ---- dates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", few_of(Dates.known))
def test_dates_are_what_babel_writes_and_each_tells_its_day(language: str) -> None:
    task = make("dates", languages=(language,), years=(2019, 2024))
    meant: dict[str, str] = {}
    for tag, said, answer in pairs_of(task, task.answered(*task.question(generator(1), 12_000))):
        assert tag == language
        assert meant.setdefault(said, answer) == answer, "the question determines the answer"
    assert len({*meant.values()}) > 1600, "most of the days there are"
    for said, answer in [*meant.items()][:200]:
        day = datetime.date.fromisoformat(answer)
        assert said in {date_text(day, language, form) for form in task.formats}
    for form in task.formats:
        some = (datetime.date(2021, month, day) for month in range(1, 13) for day in (1, 13, 28))
        written = (date_text(day, language, form) for day in some)
        assert sum(said in meant for said in written) > 12, form
    assert max(len(said) for said in meant) + len(language) + 2 == task.longest[0]


@given(first=st.integers(1000, 9998), more=st.integers(0, 300), seed=st.integers(0, 99))
@settings(max_examples=6, deadline=None)
def test_dates_of_any_years_are_right(first: int, more: int, seed: int) -> None:
    task = make("dates", languages=("en_GB", "hu"), formats=("full", "short"), years=(first, min(first + more, 9998)))
    pairs = task.answered(*task.question(generator(seed), 20))
    check_answers("dates", task, pairs)
    assert pairs.source.size(1) == task.longest[0]


def test_every_day_language_and_format_is_equally_likely() -> None:
    task = make("dates", languages=("en", "ja", "de"), years=(2023, 2024))
    drawn, _ = task.question(generator(1), 9000)
    days = drawn[:, 0] - datetime.date(2023, 1, 1).toordinal()
    assert {*days.tolist()} == {*range(365 + 366)}
    assert days.bincount().max() < 35
    said = texts(task, drawn[:, 1:])
    assert [sum(one.startswith(f"{language}: ") for one in said) for language in task.languages] == pytest.approx(
        [3000] * 3, abs=200
    )
    english = [one for one in said if one.startswith("en: ") and "May" not in one]
    shares = [sum(bool(re.fullmatch(form, one)) for one in english) / len(english) for form in ENGLISH]
    assert shares == pytest.approx([0.25] * 4, abs=0.03)


def test_a_year_is_always_written_in_full_and_spaces_are_plain() -> None:
    task = make("dates", languages=Dates.known)
    for _, said, answer in pairs_of(task, task.batch(generator(1), 1500)):
        assert re.search(rf"(?<!\d){answer[:4]}(?!\d)", said), said
        assert said == said.strip()
        assert not {*said} & {*"\u00a0\u202f\u2009\t\n"}
    assert " г." in "".join(task.texts)


# ---- both ------------------------------------------------------------------------------------------------------------


def said_of(task: Any, pairs: Any) -> set[str]:
    rows = pairs_of(task, pairs)
    return {answer if "-" in answer and answer[0].isdigit() else str(number(said, answer)) for _, said, answer in rows}


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        (
            "number_words",
            {"languages": ("en",), "direction": "to_words", "numbers": (0, 2000)},
            {"languages": ("fr", "de", "en"), "numbers": (0, 5000)},
        ),
        (
            "dates",
            {"languages": ("en",), "formats": ("full",), "years": (2020, 2022)},
            {"languages": ("fr", "de", "en"), "years": (2018, 2024)},
        ),
    ],
)
@pytest.mark.parametrize("split", ["test"])
def test_held_out_in_one_language_is_held_out_in_all(name: str, one: dict, other: dict, split: Any) -> None:
    narrow, wide = make(name, **one), make(name, **other)
    held_out = said_of(narrow, narrow.examples(split))
    assert len(held_out) > 40
    trained = said_of(wide, wide.batch(generator(1), 1000))
    assert len(trained) > 500
    assert not held_out & trained
    rest = {"validation": "test", "test": "validation"}[split]
    assert not held_out & said_of(wide, wide.examples(rest))


@pytest.mark.parametrize("name", ["number_words", "dates"])
def test_a_held_out_set_has_every_language_and_nothing_twice(name: str) -> None:
    task = make(name, languages=("en", "ja", "de"))
    pairs = task.examples("test", 900)
    assert len({*questions(task, pairs)}) == 900
    languages = [language for language, _, _ in pairs_of(task, pairs)]
    assert {language: languages.count(language) for language in task.languages} == pytest.approx(
        dict.fromkeys(task.languages, 300), abs=70
    )


@pytest.mark.parametrize("name", ["number_words", "dates"])
def test_the_alphabet_does_not_depend_on_the_range(name: str) -> None:
    ranges = {"number_words": ("numbers", (0, 9), (0, 999_999)), "dates": ("years", (2000, 2000), (1234, 5678))}
    option, few, many = ranges[name]
    assert make(name, **{option: few}).vocabulary.alphabet == make(name, **{option: many}).vocabulary.alphabet


@pytest.mark.parametrize("name", ["number_words", "dates"])
def test_a_tokenizer_from_a_checkpoint_is_used(name: str) -> None:
    rich, task = make(name, languages=RICH if name == "number_words" else ("en", "ru")), make(name, languages=("en",))
    task.vocabulary = rich.vocabulary
    fresh = make(name, languages=("en",))
    one, other = task.batch(generator(1), 20), fresh.batch(generator(1), 20)
    assert texts(task, one.source) == texts(fresh, other.source)
    assert texts(task, one.target) == texts(fresh, other.target)


def test_a_number_alone_is_in_one_split_and_the_others_name_the_option() -> None:
    refused = []
    for split in ("validation", "test"):
        try:
            make("number_words", numbers=(7, 7)).examples(split)  # type: ignore[arg-type]
        except ValueError as error:
            refused.append(str(error))
    assert refused
    assert all("make data.numbers larger" in sentence for sentence in refused)
