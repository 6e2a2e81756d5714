"""Rows of a batch: those that have ended leave it, each has its own random numbers, and none depends on the others."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.generation.decode import COMPACT_FROM_ROWS, DecodeStep, generate, steps

VOCABULARY, PAD, EOS = 12, 0, 2


class Pages:
    """A fake cache with the indices of the rows that are still in the batch."""

    def __init__(self, rows: int) -> None:
        self.rows = list(range(rows))
        self.length = 0

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]


class Reading:
    """Prefers script[n] in row n, token by token; records the number of rows of each step."""

    def __init__(self, script: list[list[int]], certainty: float = 3.0) -> None:
        self.script, self.certainty = script, certainty
        self.row_counts: list[int] = []
        self.sources: list[list[int]] = []

    def start(self, *source: Tensor) -> Pages:
        self.sources.append(source[0].tolist() if source else [])
        return Pages(len(source[0]) if source else len(self.script))

    def step(self, ids: Tensor, cache: Pages, keep: Tensor | None = None) -> Tensor:
        rows = self.sources[-1] if self.sources[-1] else cache.rows
        rows = rows if len(rows) == len(ids) else [rows[row] for row in cache.rows]
        assert len(ids) == len(rows), "the cache and the tokens are of the same rows"
        self.row_counts.append(len(ids))
        if cache.length:
            for row, token in zip(rows, ids[:, -1].tolist(), strict=True):
                assert token in (self.script[row][len(self.row_counts) - 2], PAD), "each row reads its own latest token"
        cache.length += ids.size(1)
        logits = torch.zeros(*ids.shape, VOCABULARY)
        for place, row in enumerate(rows):
            logits[place, -1, self.script[row][len(self.row_counts) - 1]] = self.certainty
        return logits


def run(model: Reading, limit: int, **options: Any) -> list[DecodeStep]:
    ids = torch.full((len(model.script), 1), 3)
    return list(steps(model, ids, max_new_tokens=limit, eos=EOS, pad=PAD, **options))  # type: ignore[arg-type]


def script(*lengths: int, longest: int) -> list[list[int]]:
    """Rows of different words that end after so many."""
    return [
        [EOS if place == length - 1 else 3 + (row + place) % 9 for place in range(longest)]
        for row, length in enumerate(lengths)
    ]


def until_the_end(row: list[int]) -> list[int]:
    return row[: row.index(EOS) + 1] if EOS in row else row


lengths_of_rows = st.lists(st.integers(1, 12), min_size=1, max_size=3 * COMPACT_FROM_ROWS)


@given(lengths_of_rows, st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_rows_that_leave_change_nothing(lengths: list[int], limit: int) -> None:
    rows = script(*lengths, longest=12)
    model = Reading(rows)
    columns = run(model, limit, scores=True)
    written = torch.stack([column.ids for column in columns], dim=1).tolist()
    expected = [until_the_end(row[:limit]) for row in rows]
    longest = max(map(len, expected))
    assert written == [row + [PAD] * (longest - len(row)) for row in expected]
    certain = math.log(math.exp(3.0) / (math.exp(3.0) + VOCABULARY - 1))
    logs = torch.stack([column.log_probability for column in columns if column.log_probability is not None], dim=1)
    for row, own in zip(logs.tolist(), expected, strict=True):
        assert row == pytest.approx([certain] * len(own) + [0.0] * (longest - len(own)), abs=1e-5)
    for before, after in zip(model.row_counts, model.row_counts[1:], strict=False):
        assert after <= before
    for step, count in enumerate(model.row_counts):
        running = sum(len(own) > step for own in expected if step)
        assert count >= running
        if step and count >= COMPACT_FROM_ROWS:
            assert 4 * (count - running) < count, "a quarter of the rows that has ended is removed"


def test_rows_that_remain_keep_their_number_their_history_and_its_padding() -> None:
    rows = script(*[1] * COMPACT_FROM_ROWS, 4, 5, longest=6)
    lengths = [1 + row % 3 for row in range(len(rows))]
    keep = torch.arange(3) >= 3 - torch.tensor(lengths)[:, None]
    ids = torch.where(keep, 3 + torch.arange(len(rows))[:, None] % 9, PAD)
    remaining: list[list[int]] = []
    histories: list[tuple[Tensor, Tensor]] = []

    def choose(logits: Tensor, left: Tensor) -> Tensor:
        remaining.append(left.tolist())
        return logits.argmax(dim=-1)

    def process(logits: Tensor, history: Tensor, kept: Tensor, generated: int) -> Tensor:
        histories.append((history, kept))
        return logits

    model: Any = Reading(rows)
    options: Any = {"sampler": choose, "logits_processor": process}
    generate(model, ids, max_new_tokens=5, eos=EOS, pad=PAD, keep=keep, **options)
    assert remaining == [[*range(len(rows))]] + [[COMPACT_FROM_ROWS, COMPACT_FROM_ROWS + 1]] * 4
    for step, (history, kept) in enumerate(histories):
        for place, row in enumerate(remaining[step]):
            assert history[place][kept[place]].tolist() == [3 + row % 9] * lengths[row] + rows[row][:step]


def test_the_source_of_rows_that_leave_is_removed_too() -> None:
    """A context that fills up hands the source to a fresh start: only that of the rows that are left."""
    rows = script(*[1] * COMPACT_FROM_ROWS, 9, 9, longest=9)
    model, source = Reading(rows), torch.arange(COMPACT_FROM_ROWS + 2)
    ids = torch.full((COMPACT_FROM_ROWS + 2, 1), 3)
    written = generate(model, ids, source, max_new_tokens=6, eos=EOS, pad=PAD, context=4).ids  # type: ignore[arg-type]
    assert model.sources[0] == source.tolist()
    assert len(model.sources) > 1
    assert all(source == [COMPACT_FROM_ROWS, COMPACT_FROM_ROWS + 1] for source in model.sources[1:])
    assert written[COMPACT_FROM_ROWS:].tolist() == [row[:6] for row in rows[COMPACT_FROM_ROWS:]]
