"""Options of one call: whatever does not fit is refused in one sentence that begins with the name of the option."""

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitx.generation.options import BEAM_OPTIONS, SAMPLING_OPTIONS, GenerationOptions

LEAST, ABOVE_1 = 5e-324, math.nextafter(1.0, 2.0)
LIMITS: dict[str, tuple[list[Any], list[Any], str]] = {
    "max_new_tokens": ([1, 100], [0, -1], "at least 1"),
    "min_new_tokens": ([0, 100], [-1], "at least 0"),
    "no_repeat_ngram_size": ([0, 100], [-1], "at least 0"),
    "top_k": ([1, 100], [0, -1], "at least 1"),
    "num_beams": ([1, 10_000], [0, 10_001], "between 1 and 10000"),
    "num_return_sequences": ([1, 10_000], [0, 10_001], "between 1 and 10000"),
    "temperature": ([LEAST, math.inf], [0.0, -1.0, math.nan], "larger than 0"),
    "top_p": ([LEAST, 1.0], [0.0, ABOVE_1, math.nan], "in (0, 1]"),
    "min_p": ([0.0, 1.0], [-LEAST, ABOVE_1, math.nan], "in [0, 1]"),
    "repetition_penalty": ([LEAST, 1e6], [0.0, -1.0, math.nan], "larger than 0"),
    "early_stopping": ([True, False, "never"], ["always", "true", "", "Never", 1, 0.5], "true, false or never"),
    "length_penalty": ([-5.0, 5.0], [-5 * ABOVE_1, 5 * ABOVE_1, math.nan], "between -5 and 5"),
    "seed": ([-1, 0, 2**70], [], ""),
}
"""For each option values at the limits of its range, values just outside, and the words for the range."""


def refusal(**options: Any) -> str:
    with pytest.raises(ValueError, match=r"\S") as caught:
        GenerationOptions(**options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", LIMITS)
def test_a_value_in_its_range_is_taken_and_another_refused(name: str) -> None:
    inside, outside, expected = LIMITS[name]
    needed = {"num_beams": 2} if name in BEAM_OPTIONS else {} if name == "num_beams" else {"do_sample": True}
    assert [getattr(GenerationOptions(**{name: value}, **needed), name) for value in inside] == [*inside]
    for value in outside:
        assert refusal(**{name: value}, **needed) == f"{name} must be {expected}, got {value}"


TYPES: dict[str, list[Any]] = {
    "an integer": ["5", 2.5, True], "a number": ["hot", [0.5], True], "true or false": ["yes", 1, None],
    "a list of texts": [5, ["a", 5]],
}  # fmt: skip
OTHERS = {"do_sample": "true or false", "compile": "true or false", "stop": "a list of texts"}


@pytest.mark.parametrize("name", [*OTHERS, *(name for name in LIMITS if name != "early_stopping")])
def test_a_value_of_another_type_is_refused(name: str) -> None:
    expected = OTHERS.get(name) or ("a number" if isinstance(LIMITS[name][0][0], float) else "an integer")
    for value in TYPES[expected]:
        assert refusal(**{name: value}) == f"{name} must be {expected}, got {value!r}"


@given(st.integers(1, 20), st.integers(0, 25))
def test_min_new_tokens_is_at_most_max_new_tokens(most: int, least: int) -> None:
    if least <= most:
        GenerationOptions(max_new_tokens=most, min_new_tokens=least)
    else:
        sentence = refusal(max_new_tokens=most, min_new_tokens=least)
        assert sentence == f"min_new_tokens must be at most max_new_tokens, got {least} and {most}"


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_beams_samples_and_several_texts(beams: int, texts: int, samples: bool) -> None:
    options = {"num_beams": beams, "num_return_sequences": texts, "do_sample": samples}
    if beams > 1 and samples:
        assert refusal(**options).startswith("do_sample and num_beams exclude each other")
    elif not samples and texts > beams:
        expected = f"num_return_sequences must be at most num_beams without do_sample, got {texts} and {beams}"
        assert refusal(**options) == expected
    else:
        GenerationOptions(**options)


@pytest.mark.parametrize("name", [*SAMPLING_OPTIONS, *BEAM_OPTIONS])
def test_an_option_without_effect_is_refused(name: str) -> None:
    needed = "num_beams above 1" if name in BEAM_OPTIONS else "do_sample"
    other = {"do_sample": True} if name in BEAM_OPTIONS else {"num_beams": 2}
    for value, options in product(LIMITS[name][0], ({}, other)):
        assert refusal(**{name: value}, **options).startswith(f"{name} needs {needed}")
