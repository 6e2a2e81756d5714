"""Numbers in words and dates: texts are those of num2words and Babel, splits depend on the content alone."""

import datetime
import itertools
import random
import re
from typing import Any

import pytest
import torch

from minitx.data.splits import SPLITS
from minitx.data.tasks import Dates, NumberWords, generator
from minitx.data.tasks.languages import number_parts
from minitx.data.text.tokenizer_training import BPETokenizer, ByteTokenizer, CharTokenizer
from toy import check_answers, check_even, make, texts, words

ENGLISH = (r"\d+/\d+/\d{4}", r"\w{3} \d+, \d{4}", r"(?!\w{3} )\w+ \d+, \d{4}", r"\w+day, \w+ \d+, \d{4}")
"""Short, medium, long and full, but in May."""
RANGES = {"number_words": ("numbers", (0, 2000), (0, 999_999)), "dates": ("years", (2020, 2022), (2018, 2024))}


def few_of(languages: tuple[str, ...]) -> list[Any]:
    """All languages, of which the fast suite runs those with forms of their own."""
    rich = {"en", "fr_BE", "ja", "pl", "hu"}
    return [one if one in rich else pytest.param(one, marks=pytest.mark.slow) for one in languages]


def pairs_of(task: Any, pairs: Any) -> list[tuple[str, str, str]]:
    return [(*question.split(": ", 1), answer) for question, answer in texts(task, pairs)]


def contents(task: Any, pairs: Any) -> set[str]:
    """The numbers in digits, or the dates in ISO 8601."""
    return {text if text.isdigit() else answer for _, text, answer in pairs_of(task, pairs)}


def test_only_a_tokenizer_for_characters_is_adopted() -> None:
    """Lengths are computed in characters."""
    task = NumberWords(languages=["en"], numbers=(0, 20))
    kinds = CharTokenizer(), ByteTokenizer(), BPETokenizer(size=300)
    assert [task.adopted(kind.train([task.texts])) is not None for kind in kinds] == [True, False, False]


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


def test_numbers_of_all_lengths_and_directions_are_equally_likely() -> None:
    for smallest in (0, 50):
        task = make("number_words", languages=("en", "ja"), numbers=(smallest, 12_345))
        sampled = task.question(generator(1), 6000)[0].tolist()
        check_even((len(str(number)) for number, _, _ in sampled), range(len(str(smallest)), 6))
        check_even(((language, to_words) for _, language, to_words in sampled), itertools.product((0, 1), repeat=2))
        check_even((number for number, _, _ in sampled if 10 <= number < 100), range(max(10, smallest), 100))
        assert 12_000 < max(sampled)[0] <= 12_345


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


@pytest.mark.parametrize("language", few_of(Dates.known))
def test_dates_are_texts_of_babel_and_each_has_one_day(language: str) -> None:
    task = make("dates", languages=(language,), years=(2019, 2020))
    days: dict[str, str] = {}
    pairs = task.answered(*task.question(generator(1), 5000))
    check_answers("dates", task, pairs.slice(0, 100))
    for tag, text, answer in pairs_of(task, pairs):
        assert tag == language
        assert days.setdefault(text, answer) == answer, "the question determines the answer"
        assert re.search(rf"(?<!\d){answer[:4]}(?!\d)", text), "the year is written in full"
        assert text == text.strip()
        assert not {*text} & {*"\u00a0\u202f\u2009\t\n"}, "spaces are plain"
    assert len({*days.values()}) > 650, "most of the 731 days"
    assert max(len(text) for text in days) + len(language) + 2 == task.longest[0]


def test_every_day_is_equally_likely() -> None:
    sampled, _ = make("dates", years=(2023, 2024)).question(generator(1), 9000)
    first = datetime.date(2023, 1, 1).toordinal()
    check_even(sampled[:, 0].tolist(), range(first, first + 365 + 366))


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


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", RANGES)
def test_languages_and_forms_are_equally_likely_in_every_split(name: str, split: Any) -> None:
    task = make(name, languages=("en", "ja", "de"))
    found = pairs_of(task, task.batch(generator(1), 900) if split == "training" else task.examples(split, 900))
    check_even((language for language, _, _ in found), task.languages)
    english = [text for language, text, _ in found if language == "en" and "May" not in text]
    forms = ENGLISH if name == "dates" else (r"\d+", r"\D+")
    check_even((next(form for form in forms if re.fullmatch(form, text)) for text in english), forms)


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
    foreign = make(name, languages=("en",), **{option: few})
    foreign.vocabulary = CharTokenizer().train([["a: 0"]])
    with pytest.raises(ValueError, match=r"is not in the tokenizer's alphabet.*choose data of its characters"):
        foreign.batch(generator(1), 20)
