"""Options of one call: whatever does not fit is refused in one sentence that begins with the name of the option."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitx.generation.options import BEAMS, SAMPLING, GenerationOptions

FIELDS = [field.name for field in dataclasses.fields(GenerationOptions)]
COUNTS = {
    "max_new_tokens": 1, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "num_beams": 1, "num_return_sequences": 1,
    "top_k": 1,
}  # fmt: skip


def refusal(**options: Any) -> str:
    with pytest.raises(ValueError, match=r"\S") as caught:
        GenerationOptions(**options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def beside(name: str) -> dict[str, Any]:
    """What must be said beside an option for it to be allowed at all."""
    if name in SAMPLING:
        return {"do_sample": True}
    return {"num_beams": 2} if name in BEAMS else {}


@given(st.sampled_from(sorted(COUNTS)), st.integers(-100, 0))
def test_counts_below_their_least(name: str, below: int) -> None:
    value = COUNTS[name] - 1 + below
    assert refusal(**{name: value}, **beside(name)) == f"{name} must be at least {COUNTS[name]}, got {value}"


OUTSIDE = {
    "temperature": (st.floats(max_value=0.0) | st.just(math.nan), "larger than 0"),
    "top_p": (st.floats(max_value=0.0) | st.floats(1.0, exclude_min=True) | st.just(math.nan), "in (0, 1]"),
    "min_p": (
        st.floats(max_value=0.0, exclude_max=True) | st.floats(1.0, exclude_min=True) | st.just(math.nan), "in [0, 1]"
    ),
    "repetition_penalty": (st.floats(max_value=0.0) | st.just(math.nan), "larger than 0"),
    "early_stopping": (st.sampled_from(["always", "true", "", "Never", 2, 0.5]), "true, false or never"),
}  # fmt: skip
INSIDE = {
    "temperature": st.floats(0.0, 1e6, exclude_min=True), "top_p": st.floats(0.0, 1.0, exclude_min=True),
    "min_p": st.floats(0.0, 1.0), "repetition_penalty": st.floats(0.0, 1e6, exclude_min=True),
    "early_stopping": st.sampled_from([True, False, "never"]), "length_penalty": st.floats(-10, 10),
    "seed": st.integers(),
}  # fmt: skip


@given(st.data(), st.sampled_from(sorted(OUTSIDE)))
def test_values_out_of_their_range(data: st.DataObject, name: str) -> None:
    outside, expected = OUTSIDE[name]
    value = data.draw(outside)
    assert refusal(**{name: value}, **beside(name)) == f"{name} must be {expected}, got {value}"


@given(st.data(), st.sampled_from(sorted(INSIDE)))
def test_values_within_their_range(data: st.DataObject, name: str) -> None:
    value = data.draw(INSIDE[name])
    assert getattr(GenerationOptions(**{name: value}, **beside(name)), name) == value


@given(st.integers(1, 20), st.integers(0, 25))
def test_no_more_must_be_written_than_may(most: int, least: int) -> None:
    if least <= most:
        GenerationOptions(max_new_tokens=most, min_new_tokens=least)
    else:
        sentence = refusal(max_new_tokens=most, min_new_tokens=least)
        assert sentence == f"min_new_tokens must be at most max_new_tokens, got {least} and {most}"


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_beams_draws_and_how_many_texts(beams: int, texts: int, draws: bool) -> None:
    options = {"num_beams": beams, "num_return_sequences": texts, "do_sample": draws}
    if draws and beams > 1:
        assert refusal(**options).startswith("do_sample and num_beams exclude each other")
    elif not draws and texts > beams:
        expected = f"num_return_sequences must be at most num_beams without do_sample, got {texts} and {beams}"
        assert refusal(**options) == expected
    else:
        GenerationOptions(**options)


@given(st.data(), st.sampled_from([*SAMPLING, *BEAMS]))
def test_what_would_change_nothing_is_refused(data: st.DataObject, name: str) -> None:
    value = 3 if name == "top_k" else data.draw(INSIDE[name])
    needed = "do_sample" if name in SAMPLING else "num_beams above 1"
    assert refusal(**{name: value}).startswith(f"{name} needs {needed}")
    other = {"num_beams": 2} if name in SAMPLING else {"do_sample": True}
    assert refusal(**{name: value}, **other).startswith(f"{name} needs {needed}")


def test_filters_are_what_the_sampler_takes() -> None:
    given_filters = {"temperature": 0.5, "top_k": 3, "min_p": 0.0}
    assert GenerationOptions(do_sample=True, seed=4, **given_filters).filters() == given_filters


def test_every_option_is_explained_and_loads_no_torch() -> None:
    code = (
        "import sys; from minitx.cli.main import main\ntry: main(sys.argv[1:])\nfinally: print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code, "generate", "--help"], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "False"
    for name in FIELDS:
        assert f"--{name}" in result.stdout
