import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitx.data.batch import Batch
from minitx.data.examples import Stream
from minitx.data.loader import FixedBatches, TrainingBatches
from minitx.data.tasks import Reverse
from minitx.models.transformers import ARCHITECTURES

TASK = Reverse(symbols=8, length=(1, 9), batch_size=5)


def batches(seed: int = 1, rank: int = 0, first: int = 0, total: int = 6, architecture: str = "decoder_only") -> list:
    return list(TrainingBatches(TASK, architecture, seed, rank, lambda: first, total))


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(*parts) for parts in zip(one, other, strict=True))


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
@pytest.mark.parametrize("first", [0, 3, 6])
def test_batch_n_is_the_same_wherever_a_run_starts(first: int, architecture: str) -> None:
    tail = batches(first=first, architecture=architecture)
    torch.manual_seed(1234)
    assert len(tail) == 6 - first
    assert all(map(same, tail, batches(architecture=architecture)[first:]))


def test_ranks_seeds_and_numbers_all_sample_their_own() -> None:
    sampled = [batch for seed in (1, 2) for rank in (0, 1, 2) for batch in batches(seed=seed, rank=rank)]
    for one, other in itertools.combinations(sampled, 2):
        assert not same(one, other)


def test_the_first_batch_is_asked_for_when_iteration_starts() -> None:
    step = 0
    loader = TrainingBatches(TASK, "decoder_only", 1, 0, lambda: step, 6)
    assert len(loader) == 6
    step = 4  # a run is resumed after its loader is made
    assert len(list(loader)) == 2


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 5))
def test_processes_share_fixed_examples_among_them(examples: int, size: int, processes: int) -> None:
    everything = Stream(torch.arange(examples)[:, None])
    seen: list[int] = []
    shares = []
    for rank in range(processes):
        loader = FixedBatches(everything, size, rank, processes)
        parts = list(loader)
        assert len(parts) == len(loader)
        assert all(1 <= len(part) <= size for part in parts)
        shares.append(len(parts))
        seen += [int(value) for part in parts for value in part.ids]
    assert sorted(seen) == list(range(examples))
    assert max(shares) - min(shares) <= 1
    assert min(shares) >= 1 or examples < processes, "every process has a share"


def test_fixed_examples_come_in_order_in_full_slices() -> None:
    loader = FixedBatches(Stream(torch.arange(10)[:, None]), 4)
    assert [part.ids[:, 0].tolist() for part in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [part.ids[:, 0].tolist() for part in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], "from the start"
