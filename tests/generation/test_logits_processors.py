"""Logits processors against loops over plain lists; padding is no part of the history."""

import math
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minitx.generation.logits_processors import combine_processors
from small_models import keep_of

WORDS, PAD, EOS = 6, 0, 2
texts = st.lists(st.integers(0, WORDS - 1), max_size=9)
LOGITS = torch.tensor([1.0, -2.0, 0.5, 0.0, -0.1, 3.0])


def padded(rows: list[list[int]], junk: int = PAD) -> tuple[Tensor, Tensor]:
    """Ids and keep [B, S], padded on the left with a token that may be a word as well."""
    keep = keep_of(*map(len, rows), width=max(1, *map(len, rows)), left=True)
    return torch.tensor([[junk] * (keep.size(1) - len(row)) + row for row in rows]), keep


def processed(ids: Tensor, keep: Tensor, **options: Any) -> Tensor:
    process = combine_processors([EOS], **options)
    return LOGITS.expand(len(ids), -1) if process is None else process(LOGITS.expand(len(ids), -1), ids, keep, 9)


def banned(row: list[int], size: int) -> set[int]:
    """Tokens that would repeat an n-gram of the row."""
    ngrams = {tuple(row[place : place + size]) for place in range(len(row) - size + 1)}
    if len(row) < size - 1:
        return set()
    return {word for word in range(WORDS) if (*row[len(row) - size + 1 :], word) in ngrams}


@given(st.lists(texts, min_size=2, max_size=4), st.floats(0.2, 5.0), st.integers(0, WORDS - 1))
def test_repetition_is_penalized_once_and_padding_not_at_all(rows: list[list[int]], penalty: float, junk: int) -> None:
    ids, keep = padded(rows, junk)
    found = processed(ids, keep, repetition_penalty=penalty)
    penalties = torch.tensor([[penalty if word in row else 1.0 for word in range(WORDS)] for row in rows])
    torch.testing.assert_close(found, torch.where(LOGITS < 0, LOGITS * penalties, LOGITS / penalties))


@given(st.lists(texts, min_size=2, max_size=4), st.integers(1, 5), st.integers(0, WORDS - 1))
def test_ngrams_do_not_repeat_and_padding_is_none(rows: list[list[int]], size: int, junk: int) -> None:
    ids, keep = padded(rows, junk)
    for row, logits in zip(rows, processed(ids, keep, no_repeat_ngram_size=size), strict=True):
        forbidden = banned(row, size)
        assert {word for word, x in enumerate(logits.tolist()) if x == -math.inf} == forbidden
        left = [word for word in range(WORDS) if word not in forbidden]
        assert torch.equal(logits[left], LOGITS[left])


def test_ends_come_late_and_tokens_never_or_at_their_step() -> None:
    """Ends are impossible before min_new_tokens, `never` always; `forced` tokens are certain at their step alone."""
    process = combine_processors([EOS, 5], min_new_tokens=2, never=[4], forced={1: 3})
    for generated, possible in enumerate([[0, 1, 3], [3], [0, 1, 2, 3, 5], [0, 1, 2, 3, 5]]):
        found = process(LOGITS.expand(2, -1), torch.zeros(2, 1, dtype=torch.long), None, generated)
        assert found.isfinite().tolist() == [[token in possible for token in range(WORDS)]] * 2
        assert torch.equal(found[:, possible], LOGITS[possible].expand(2, -1) if generated != 1 else torch.zeros(2, 1))
    assert combine_processors([EOS]) is None, "nothing to change"
