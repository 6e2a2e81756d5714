"""Which id each token is told."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from minitx.nn.position_ids import consecutive

keep_rows = st.integers(1, 10).flatmap(
    lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=4)
)


@given(st.integers(0, 20))
def test_without_padding_one_row_counts_for_all(length: int) -> None:
    ids = consecutive(length)
    assert ids.shape == (1, length)
    assert ids[0].tolist() == list(range(length))


@given(keep_rows)
def test_real_tokens_count_from_zero_wherever_the_padding_is(rows: list[list[bool]]) -> None:
    ids = consecutive(len(rows[0]), torch.tensor(rows))
    assert ids.dtype == torch.long
    assert ids.shape == (len(rows), len(rows[0]))
    for row, row_ids in zip(rows, ids.tolist(), strict=True):
        assert [number for number, real in zip(row_ids, row, strict=True) if real] == list(range(sum(row)))


@given(keep_rows)
def test_padding_shares_the_id_of_its_left_neighbour(rows: list[list[bool]]) -> None:
    """So that no padding asks for an id that a table of the real length would not have."""
    for row, row_ids in zip(rows, consecutive(len(rows[0]), torch.tensor(rows)).tolist(), strict=True):
        for index, real in enumerate(row):
            if not real:
                assert row_ids[index] == (row_ids[index - 1] if index else 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4), st.integers(1, 6))
def test_padding_on_either_side_shifts_nothing(pads: list[tuple[int, int]], length: int) -> None:
    width = length + max(left + right for left, right in pads)
    keep = torch.zeros(len(pads), width, dtype=torch.bool)
    for row, (left, _) in enumerate(pads):
        keep[row, left : left + length] = True
    ids = consecutive(width, keep)
    for row, (left, _) in enumerate(pads):
        assert torch.equal(ids[row, left : left + length], consecutive(length)[0])


@given(keep_rows)
def test_the_mask_of_real_tokens_is_left_as_it_was(rows: list[list[bool]]) -> None:
    keep = torch.tensor(rows)
    consecutive(keep.size(1), keep)
    assert keep.tolist() == rows
