import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.data.tasks import generator
from minitx.data.text.buckets import Buckets, Rows

PAD = 0


@given(st.lists(st.lists(st.integers(1, 60_000), min_size=1, max_size=9), min_size=1, max_size=20), st.data())
@settings(max_examples=50, deadline=None)
def test_rows_come_back_as_they_were_padded_on_the_right(rows: list[list[int]], data: st.DataObject) -> None:
    which = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=10))
    held = Rows(rows)
    ids, keep = held.padded(torch.tensor(which), PAD)
    assert len(held) == len(rows)
    assert ids.dtype == torch.long
    assert ids.shape == keep.shape == (len(which), max(len(rows[place]) for place in which))
    assert [row[real].tolist() for row, real in zip(ids, keep, strict=True)] == [rows[place] for place in which]
    assert (ids[~keep] == PAD).all()
    assert (keep == (torch.arange(keep.size(1)) < keep.sum(dim=1, keepdim=True))).all()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200), st.integers(0, 250), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_a_batch_is_of_one_bucket(lengths: list[int], count: int, seed: int) -> None:
    drawn = Buckets(torch.tensor(lengths), count).draw(generator(seed), 30)
    assert drawn.shape == (30,)
    order = sorted(range(len(lengths)), key=lambda place: lengths[place])
    ranks = [order.index(place) for place in drawn.tolist()]
    size = -(-len(lengths) // max(1, min(count, len(lengths))))
    assert max(ranks) - min(ranks) < size, "from as many neighbours as a bucket holds"


def test_every_row_is_as_likely_as_any_other() -> None:
    lengths = torch.tensor([7, 1, 5, 5, 2, 9, 3, 5, 8, 4, 6])  # 11 rows in 4 buckets: 2, 3, 3, 3
    buckets = Buckets(lengths, 4)
    counts = sum(buckets.draw(generator(seed), 4).bincount(minlength=11) for seed in range(6000))
    assert isinstance(counts, torch.Tensor)
    share = counts / counts.sum()
    assert (share - 1 / 11).abs().max() < 0.008


def test_a_draw_is_a_function_of_its_generator() -> None:
    buckets = Buckets(torch.arange(100) % 17, 5)
    first = buckets.draw(generator(1, 2), 12)
    torch.manual_seed(4)
    assert torch.equal(first, buckets.draw(generator(1, 2), 12))
    assert len({tuple(buckets.draw(generator(1, step), 12).tolist()) for step in range(20)}) == 20
