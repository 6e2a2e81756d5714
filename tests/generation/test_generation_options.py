"""Options of one call: whatever does not fit is refused in one sentence that begins with the name of the option."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitx.cli.main import main
from minitx.generation.options import BEAMS, SAMPLING, GenerationOptions

NAN = st.just(math.nan)
ABOVE_0 = st.floats(0.0, 1e6, exclude_min=True)
COUNTS = {
    name: (st.integers(least, 100), st.integers(-100, least - 1), f"at least {least}")
    for name, least in {
        "max_new_tokens": 1, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "top_k": 1,
    }.items()
}  # fmt: skip
TEXTS = (st.integers(1, 10_000), st.integers(max_value=0) | st.integers(10_001), "between 1 and 10000")
RANGES: dict[str, tuple[Any, Any, str]] = {
    **COUNTS, "num_beams": TEXTS, "num_return_sequences": TEXTS,
    "temperature": (ABOVE_0, st.floats(max_value=0.0) | NAN, "larger than 0"),
    "top_p": (
        st.floats(0.0, 1.0, exclude_min=True), st.floats(max_value=0.0) | st.floats(1.0, exclude_min=True) | NAN,
        "in (0, 1]",
    ),
    "min_p": (
        st.floats(0.0, 1.0), st.floats(max_value=0.0, exclude_max=True) | st.floats(1.0, exclude_min=True) | NAN,
        "in [0, 1]",
    ),
    "repetition_penalty": (ABOVE_0, st.floats(max_value=0.0) | NAN, "larger than 0"),
    "early_stopping": (
        st.sampled_from([True, False, "never"]), st.sampled_from(["always", "true", "", "Never", 1, 0.5]),
        "true, false or never",
    ),
    "length_penalty": (
        st.floats(-5, 5), st.floats(max_value=-5, exclude_max=True) | st.floats(5, exclude_min=True) | NAN,
        "between -5 and 5",
    ),
    "seed": (st.integers(), None, ""),
}  # fmt: skip
"""For each option values inside its range, values outside, and the words for the range."""


def refusal(**options: Any) -> str:
    with pytest.raises(ValueError, match=r"\S") as caught:
        GenerationOptions(**options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@given(st.data(), st.sampled_from([*RANGES]))
def test_a_value_in_its_range_is_taken_and_another_refused(data: st.DataObject, name: str) -> None:
    inside, outside, expected = RANGES[name]
    needed = {"do_sample": True} if name in SAMPLING else {"num_beams": 2} if name in BEAMS else {}
    value = data.draw(inside)
    if name not in ("max_new_tokens", "min_new_tokens", "num_return_sequences"):  # see the combinations below
        assert getattr(GenerationOptions(**{name: value}, **needed), name) == value
    if outside is not None:
        value = data.draw(outside)
        assert refusal(**{name: value}, **needed) == f"{name} must be {expected}, got {value}"


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


@given(st.data(), st.sampled_from([*SAMPLING, *BEAMS]))
def test_an_option_without_effect_is_refused(data: st.DataObject, name: str) -> None:
    value = data.draw(RANGES[name][0])
    needed, other = ("do_sample", {"num_beams": 2}) if name in SAMPLING else ("num_beams above 1", {"do_sample": True})
    for options in ({}, other):
        assert refusal(**{name: value}, **options).startswith(f"{name} needs {needed}")


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    out = capsys.readouterr().out
    assert [field.name for field in dataclasses.fields(GenerationOptions) if f"--{field.name}" not in out] == []
