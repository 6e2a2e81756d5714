import itertools
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitx.data import prompts
from minitx.data.splits import SHARES, SPLITS, content_hash, in_split
from minitx.data.tasks import Copy, generator, question_tasks
from minitx.data.tasks.base import FIRST_SYMBOL_ID

ROWS = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=12), min_size=1, max_size=6)
padded = partial(prompts.padded, device=torch.device("cpu"))


@given(ROWS, st.integers(1, 17), st.integers(0, 60))
def test_a_hash_depends_on_neither_padding_nor_other_rows(rows: list[list[int]], longest: int, pad: int) -> None:
    hashes = content_hash(*padded([*rows, [1] * longest], pad)).tolist()
    assert hashes[:-1] == [int(content_hash(*padded([row], pad))) for row in rows]


def test_every_hash_belongs_to_exactly_one_split() -> None:
    hashes = torch.cat((torch.arange(-1500, 1500), torch.tensor([-(2**63), 2**63 - 1])))  # every bucket
    assert torch.stack([in_split(hashes, split) for split in SPLITS]).sum(dim=0).eq(1).all()


@pytest.mark.parametrize(("symbols", "length"), [(10, 12), (50, 8), (10, 4), (2, 13)])
def test_splits_get_their_shares_of_different_examples(symbols: int, length: int) -> None:
    rows = torch.randint(symbols, (20_000, length), generator=torch.Generator().manual_seed(1)).unique(dim=0)
    for split, share in SHARES.items():
        deviation = (share * (1 - share) / len(rows)) ** 0.5
        measured = in_split(content_hash(rows, torch.ones_like(rows, dtype=torch.bool)), split).double().mean().item()
        assert abs(measured - share) < 5 * deviation, f"{split}: {measured:.4f} of {len(rows)} examples"


@pytest.mark.parametrize("place", [0, 5])
def test_splits_of_similar_examples_are_independent(place: int) -> None:
    rows = torch.randint(30, (40_000, 6), generator=torch.Generator().manual_seed(place))
    keep = torch.ones_like(rows, dtype=torch.bool)
    neighbours = rows.clone()
    neighbours[:, place] += 1
    both = ~in_split(content_hash(rows, keep), "training") & ~in_split(content_hash(neighbours, keep), "training")
    share = 0.15**2  # as for any two examples
    assert abs(both.double().mean().item() - share) < 5 * (share * (1 - share) / len(rows)) ** 0.5


@pytest.mark.parametrize("at_once", [2**24, 500])
@pytest.mark.parametrize("distinct", [False, True])
def test_splits_cover_a_task_and_share_nothing(monkeypatch: pytest.MonkeyPatch, distinct: bool, at_once: int) -> None:
    """Distinct examples larger than their split are the whole split, each once; no part is larger than it may be."""
    monkeypatch.setattr(question_tasks, "MAX_SAMPLED", at_once)
    task: Any = Copy(symbols=3, length=(1, 5))
    task.question, ids = Mock(wraps=task.question), range(FIRST_SYMBOL_ID, FIRST_SYMBOL_ID + 3)
    every = [row for length in range(1, 6) for row in itertools.product(ids, repeat=length)]
    for split in SPLITS:
        pairs = task.sample(generator(1), 1000, split, distinct)
        found = [tuple(row[real].tolist()) for row, real in zip(pairs.source, pairs.source_keep, strict=True)]
        expected = {*itertools.compress(every, in_split(content_hash(*padded(every, pad=0)), split).tolist())}
        assert {*found} <= expected
        assert len(found) == (len(expected) if distinct else 1000)
    assert max(rows for (_, rows), _ in task.question.call_args_list) <= at_once / 5 + 1


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("size", [1, 100])
def test_the_only_example_of_a_task_is_in_one_split_and_others_are_refused(size: int, distinct: bool) -> None:
    found, refused = [], {}
    for split in SPLITS:
        task: Any = Copy(symbols=1, length=(1, 1))
        task.question = Mock(wraps=task.question)
        try:
            found.append(len(task.sample(generator(1), size, split, distinct)))
        except ValueError as error:
            refused[split] = str(error)
        assert task.question.call_count < 130, "sampling ends"
    assert (found, len(refused)) == ([1 if distinct else size], 2)
    for split, sentence in refused.items():
        assert sentence.endswith(f"to hold any out for {split}: make data.symbols or data.length larger")
