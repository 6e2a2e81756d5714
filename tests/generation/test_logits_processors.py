"""What has been said changes what may be said: against loops over plain lists, and padding is nothing that was said."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.generation.decode import generate
from minitx.generation.logits_processors import (
    apply_repetition_penalty,
    combine_processors,
    without,
    without_repeated_ngrams,
)

WORDS, PAD, EOS = 6, 0, 2
texts = st.lists(st.integers(0, WORDS - 1), max_size=9)
LOGITS = torch.tensor([1.0, -2.0, 0.5, 0.0, -0.1, 3.0])


def padded(rows: list[list[int]], junk: int = PAD) -> tuple[Tensor, Tensor]:
    """Ids and keep [B, S], padded on the left with a token that may be a word as well."""
    size = max(1, *map(len, rows))
    ids = torch.tensor([[junk] * (size - len(row)) + row for row in rows])
    return ids, torch.tensor([[False] * (size - len(row)) + [True] * len(row) for row in rows])


def punished(row: list[int], penalty: float) -> list[float]:
    return [x if word not in row else x * penalty if x < 0 else x / penalty for word, x in enumerate(LOGITS.tolist())]


def banned(row: list[int], size: int) -> set[int]:
    """Words that would complete a sequence of that size which stands in the row already."""
    said = {tuple(row[place : place + size]) for place in range(len(row) - size + 1)}
    if len(row) < size - 1:
        return set()
    return {word for word in range(WORDS) if (*row[len(row) - size + 1 :], word) in said}


@given(st.lists(texts, min_size=2, max_size=4), st.floats(0.2, 5.0), st.integers(0, WORDS - 1))
@settings(deadline=None)
def test_repetition_is_punished_once_and_padding_not_at_all(rows: list[list[int]], penalty: float, junk: int) -> None:
    ids, keep = padded(rows, junk)
    found = apply_repetition_penalty(LOGITS.expand(len(rows), -1), ids, keep, penalty)
    expected = torch.tensor([punished(row, penalty) for row in rows])
    torch.testing.assert_close(found, expected)
    assert torch.equal(found.isneginf(), torch.zeros_like(found, dtype=torch.bool))


@given(st.lists(texts, min_size=2, max_size=4), st.integers(1, 5), st.integers(0, WORDS - 1))
@settings(max_examples=200, deadline=None)
def test_sequences_do_not_come_twice_and_padding_is_none(rows: list[list[int]], size: int, junk: int) -> None:
    ids, keep = padded(rows, junk)
    found = without_repeated_ngrams(LOGITS.expand(len(rows), -1), ids, keep, size)
    for row, logits in zip(rows, found, strict=True):
        forbidden = banned(row, size)
        assert {word for word, x in enumerate(logits.tolist()) if x == -math.inf} == forbidden
        left = [word for word in range(WORDS) if word not in forbidden]
        assert torch.equal(logits[left], LOGITS[left])


def test_the_logits_are_not_changed() -> None:
    logits = LOGITS[None].clone()
    history = torch.tensor([[5, 5, 1, 5]])
    apply_repetition_penalty(logits, history, None, 2.0)
    without_repeated_ngrams(logits, history, None, 1)
    without(logits, [1, 2])
    assert torch.equal(logits[0], LOGITS)


def test_tokens_made_impossible() -> None:
    found = without(LOGITS.expand(2, -1), [EOS, 4])
    assert found.isneginf().tolist() == [[False, False, True, False, True, False]] * 2
    assert torch.equal(without(LOGITS[None], []), LOGITS[None])


def test_nothing_to_change_is_none() -> None:
    assert combine_processors([EOS]) is None
    for options in ({"repetition_penalty": 1.1}, {"no_repeat_ngram_size": 1}, {"min_new_tokens": 1}):
        assert combine_processors([EOS], **options) is not None  # type: ignore[arg-type]


# ---- through the whole loop ------------------------------------------------------------------------------------------


class Stubborn:
    """Always says the same words, the first of a list most of all, the end included."""

    def __init__(self, *wishes: int) -> None:
        self.logits = torch.zeros(WORDS)
        for place, word in enumerate(wishes):
            self.logits[word] = 10.0 - place

    def start(self) -> None:
        return None

    def step(self, ids: Tensor, cache: None, keep: Tensor | None = None) -> Tensor:
        return self.logits.expand(*ids.shape, -1)


def write(model: Stubborn, ids: list[list[int]], limit: int, keep: Tensor | None = None, **options: float) -> list:
    adjust = combine_processors([EOS], **options)  # type: ignore[arg-type]
    return generate(
        model,
        torch.tensor(ids),
        max_new_tokens=limit,
        eos=EOS,
        pad=PAD,
        keep=keep,
        logits_processor=adjust,  # type: ignore[arg-type]
    ).ids.tolist()


@pytest.mark.parametrize("least", [0, 1, 3, 6])
def test_no_end_before_the_least_number_of_tokens(least: int) -> None:
    """Counted from the first token written, whatever the prompt."""
    for prompt in ([1], [3, 4, 5, 1]):
        written = write(Stubborn(EOS, 5), [prompt], 6, min_new_tokens=least)
        assert written == [[5] * least + ([EOS] if least < 6 else [])]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_is_written_holds_no_sequence_twice(size: int) -> None:
    row = [1, *write(Stubborn(5, 4, 3), [[1]], 5 if size == 1 else 12, no_repeat_ngram_size=size)[0]]
    sequences = [tuple(row[place : place + size]) for place in range(len(row) - size + 1)]
    assert len({*sequences}) == len(sequences)
    assert [5] * size == row[1 : size + 1], "and no earlier than it must"


def test_the_prompt_counts_as_said_and_its_padding_does_not() -> None:
    ids, keep = padded([[5, 5, 1], [1]], junk=5)
    written = write(Stubborn(5, 4), ids.tolist(), 1, keep, no_repeat_ngram_size=1)
    assert written == [[4], [5]]
    written = write(Stubborn(5, 4), ids.tolist(), 1, keep, repetition_penalty=2.0)
    assert written == [[4], [5]]
