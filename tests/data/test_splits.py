from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minitx.data.splits import SPLITS, content_hash, draw_split, in_split

SHARES = {"training": 0.85, "validation": 0.05, "test": 0.10}
ROWS = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=12), min_size=1, max_size=6)


def padded(rows: list[list[int]], width: int | None = None, padding: int = 0) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows)) if width is None else width
    ids = torch.tensor([row + [padding] * (width - len(row)) for row in rows])
    return ids, torch.arange(width) < torch.tensor([[len(row)] for row in rows])


def hashed(rows: list[list[int]]) -> list[int]:
    return content_hash(*padded(rows)).tolist()


def sequences(symbols: int, lengths: range) -> list[list[int]]:
    return [list(row) for length in lengths for row in itertools.product(range(symbols), repeat=length)]


def drawer(symbols: int, shortest: int, longest: int, seed: int = 0):
    """Draws random sequences, as a task does; counts how often it was asked."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int) -> tuple[Tensor, Tensor]:
        draw.calls += 1
        lengths = torch.randint(shortest, longest + 1, (rows, 1), generator=generator)
        return torch.randint(symbols, (rows, longest), generator=generator), torch.arange(longest) < lengths

    draw.calls = 0
    return draw


def contents(ids: Tensor, keep: Tensor) -> list[tuple[int, ...]]:
    return [tuple(row[real].tolist()) for row, real in zip(ids, keep, strict=True)]


@given(ROWS, st.integers(0, 5), st.integers(0, 60))
def test_padding_does_not_change_a_hash(rows: list[list[int]], more: int, padding: int) -> None:
    wider = padded(rows, max(map(len, rows)) + more, padding)
    assert content_hash(*wider).tolist() == hashed(rows)


@given(ROWS)
def test_a_row_hashes_alike_in_any_company(rows: list[list[int]]) -> None:
    assert hashed(rows) == [value for row in rows for value in hashed([row])]


@given(st.lists(st.integers(0, 60), min_size=2, max_size=6, unique=True))
def test_every_order_of_the_same_symbols_hashes_differently(symbols: list[int]) -> None:
    orders = [list(order) for order in itertools.permutations(symbols)]
    assert len(set(hashed(orders))) == len(orders)


def test_short_sequences_differ_by_length_and_content() -> None:
    rows = sequences(5, range(1, 6))  # holds 0, 0 0, 0 0 0, ... too
    assert len(set(hashed(rows))) == len(rows)


def test_every_hash_belongs_to_exactly_one_split() -> None:
    hashes = torch.cat((torch.arange(-1500, 1500), torch.tensor([-(2**63), 2**63 - 1])))  # every bucket
    belongs = torch.stack([in_split(hashes, split) for split in SPLITS])  # type: ignore[arg-type]
    assert belongs.sum(dim=0).eq(1).all()


@pytest.mark.parametrize(("symbols", "length"), [(10, 12), (50, 8), (10, 4), (2, 13)])
def test_splits_get_their_shares_of_different_examples(symbols: int, length: int) -> None:
    rows = torch.randint(symbols, (20_000, length), generator=torch.Generator().manual_seed(1)).unique(dim=0)
    hashes = content_hash(rows, torch.ones_like(rows, dtype=torch.bool))
    for split, share in SHARES.items():
        deviation = (share * (1 - share) / len(rows)) ** 0.5
        measured = in_split(hashes, split).double().mean().item()  # type: ignore[arg-type]
        assert abs(measured - share) < 5 * deviation, f"{split}: {measured:.4f} of {len(rows)} examples"


@pytest.mark.parametrize("place", [0, 5])
def test_neighbouring_examples_do_not_share_their_fate(place: int) -> None:
    rows = torch.randint(30, (40_000, 6), generator=torch.Generator().manual_seed(place))
    keep = torch.ones_like(rows, dtype=torch.bool)
    neighbours = rows.clone()
    neighbours[:, place] += 1
    both = ~in_split(content_hash(rows, keep), "training") & ~in_split(content_hash(neighbours, keep), "training")
    share = 0.15**2  # as for any two examples
    assert abs(both.double().mean().item() - share) < 5 * (share * (1 - share) / len(rows)) ** 0.5


def test_no_example_is_drawn_for_two_splits() -> None:
    drawn = {
        split: {
            row
            for seed in range(5)
            for row in contents(*draw_split(drawer(4, 1, 5, seed), 500, split, distinct=False))  # type: ignore[arg-type]
        }
        for split in SPLITS
    }
    for one, other in itertools.combinations(SPLITS, 2):
        assert not drawn[one] & drawn[other], f"{one} and {other} share examples"


def test_a_fixed_set_has_no_example_twice_whatever_its_padding() -> None:
    ids, keep = draw_split(drawer(3, 1, 6), 90, "test", distinct=True)
    assert ids.shape == keep.shape == (90, 6)
    assert len({*contents(ids, keep)}) == 90


def test_a_fixed_set_larger_than_its_split_is_the_whole_split() -> None:
    every = sequences(3, range(1, 6))
    for split in ("validation", "test"):
        members = in_split(content_hash(*padded(every)), split).tolist()  # type: ignore[arg-type]
        expected = {tuple(row) for row, member in zip(every, members, strict=True) if member}
        assert set(contents(*draw_split(drawer(3, 1, 5), 400, split, distinct=True))) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("size", [1, 100])
def test_the_only_example_of_a_task_is_in_one_split_and_the_others_say_so(size: int, distinct: bool) -> None:
    found, refused = [], {}
    for split in SPLITS:
        draw = drawer(1, 1, 1)
        try:
            found.append(len(draw_split(draw, size, split, distinct)[0]))  # type: ignore[arg-type]
        except ValueError as error:
            refused[split] = str(error)
        assert draw.calls < 100, "it should have given up"
    assert found == [1 if distinct else size]
    assert len(refused) == 2
    for split, sentence in refused.items():
        for part in ("data.symbols", "data.length", split):
            assert part in sentence
