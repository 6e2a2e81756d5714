"""The decoding loop with scripted models: what each step reads, and rows that end and leave the batch."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.generation.decode import COMPACT_FROM_ROWS, generate, steps
from scripted import PAD, VOCABULARY, Scripted

EOS = 2


def write(model: Any, ids: list[list[int]], *source: Tensor, **options: Any) -> list[list[int]]:
    options = {"max_new_tokens": 5, "eos": EOS, "pad": PAD, **options}
    return generate(model, torch.tensor(ids), *source, **options).ids.tolist()


def test_the_prompt_is_read_once_and_then_each_new_token_on_demand() -> None:
    model, keep = Scripted([5, 6, 7], [8, EOS, 9]), torch.tensor([[True, True], [False, True]])
    write(model, [[3, 4], [PAD, 4]], max_new_tokens=3, keep=keep)
    assert model.reads == [([[3, 4], [PAD, 4]], keep.tolist()), ([[5], [8]], None), ([[6], [EOS]], None)]
    assert len(model.sources) == 1
    demanded: Any = Scripted([5, EOS, 9], [6, 7, EOS])
    several = steps(demanded, torch.tensor([[3], [3]]), max_new_tokens=4, eos=EOS, pad=PAD)
    first = next(several)
    assert (first.ids.tolist(), first.log_probability) == ([5, 6], None)
    assert len(demanded.reads) == 1
    assert [step.ids.tolist() for step in several] == [[EOS, 7], [PAD, EOS]]


@pytest.mark.parametrize(("context", "caches"), [(1, 40), (2, 20), (7, 8), (50, 1)])
def test_decoding_continues_past_the_context(context: int, caches: int) -> None:
    model = Scripted(*script(99, longest=40))
    assert write(model, [[10]], max_new_tokens=40, context=context) == [*model.script]
    assert (model.longest, len(model.sources)) == (min(context, 40), caches), "half of a full cache begins the next"


def test_padding_stays_hidden_in_the_last_half_of_a_context() -> None:
    model = Scripted([5, 6], [5, 6])
    keep = torch.tensor([[True] * 9, [False] * 8 + [True]])
    write(model, [[9, 3, 4, 5, 6, 7, 8, 9, 10], [PAD] * 8 + [11]], keep=keep, context=8, max_new_tokens=2)
    assert (len(model.sources), model.reads[0][1]) == (2, keep[:, 1:].tolist()), "the last ones of a prompt are read"
    assert model.reads[1] == ([[8, 9, 10, 5], [PAD, PAD, 11, 5]], [[True] * 4, [False, False, True, True]])


def script(*lengths: int, longest: int) -> list[list[int]]:
    """Rows of different words that end after so many."""
    rows = enumerate(lengths)
    return [[EOS if place == length - 1 else 3 + (row + place) % 9 for place in range(longest)] for row, length in rows]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=3 * COMPACT_FROM_ROWS), st.integers(1, 12))
@settings(max_examples=60)
def test_rows_that_leave_change_nothing(lengths: list[int], limit: int) -> None:
    def process(logits: Tensor, history: Tensor, *_: Any) -> Tensor:  # a row that has ended has no possible token
        return logits.masked_fill((history == EOS).any(dim=1, keepdim=True), -math.inf)

    rows = script(*lengths, longest=12)
    model, prompt = Scripted(*rows), torch.full((len(rows), 1), 3)
    columns = list(steps(model, prompt, max_new_tokens=limit, eos=EOS, pad=PAD, scores=True, logits_processor=process))
    written = torch.stack([column.ids for column in columns], dim=1).tolist()
    expected = [row[: min(length, limit)] for row, length in zip(rows, lengths, strict=True)]
    longest = max(map(len, expected))
    assert written == [row + [PAD] * (longest - len(row)) for row in expected]
    certain = math.log(math.exp(3.0) / (math.exp(3.0) + VOCABULARY - 1))
    logs = torch.stack([column.log_probability for column in columns if column.log_probability is not None], dim=1)
    for row, own in zip(logs.tolist(), expected, strict=True):
        assert row == pytest.approx([certain] * len(own) + [0.0] * (longest - len(own)), abs=1e-5)
    counts = [len(ids) for ids, _ in model.reads]
    assert counts == sorted(counts, reverse=True)
    for step, count in enumerate(counts):
        running = sum(len(own) > step for own in expected if step)
        assert count >= running
        if step and count >= COMPACT_FROM_ROWS:
            assert 4 * (count - running) < count, "a quarter of the rows that has ended is removed"


def test_rows_that_remain_keep_their_number_their_history_and_its_padding() -> None:
    rows = script(*[1] * COMPACT_FROM_ROWS, 4, 5, longest=6)
    lengths = [1 + row % 3 for row in range(len(rows))]
    keep = torch.arange(3) >= 3 - torch.tensor(lengths)[:, None]
    ids = torch.where(keep, 3 + torch.arange(len(rows))[:, None] % 9, PAD)
    remaining, histories = list[list[int]](), list[tuple[Tensor, Tensor]]()

    def choose(logits: Tensor, left: Tensor) -> Tensor:
        remaining.append(left.tolist())
        return logits.argmax(dim=-1)

    def process(logits: Tensor, history: Tensor, kept: Tensor, generated: int) -> Tensor:
        histories.append((history, kept))
        return logits

    model: Any = Scripted(*rows)
    generate(model, ids, max_new_tokens=5, eos=EOS, pad=PAD, keep=keep, sampler=choose, logits_processor=process)
    assert remaining == [[*range(len(rows))]] + [[COMPACT_FROM_ROWS, COMPACT_FROM_ROWS + 1]] * 4
    for step, (history, kept) in enumerate(histories):
        for place, row in enumerate(remaining[step]):
            assert history[place][kept[place]].tolist() == [3 + row % 9] * lengths[row] + rows[row][:step]


def test_the_source_of_rows_that_leave_is_removed_too() -> None:
    """A context that fills up hands the source to a fresh start: only that of the rows that are left."""
    rows = script(*[1] * COMPACT_FROM_ROWS, 9, 9, longest=9)
    model, source = Scripted(*rows), torch.arange(COMPACT_FROM_ROWS + 2)
    ids = torch.full((COMPACT_FROM_ROWS + 2, 1), 3)
    written = generate(model, ids, source, max_new_tokens=6, eos=EOS, pad=PAD, context=4).ids  # type: ignore[arg-type]
    assert model.sources[0] == source.tolist()
    assert {*map(tuple, model.sources[1:])} == {(COMPACT_FROM_ROWS, COMPACT_FROM_ROWS + 1)}
    assert written[COMPACT_FROM_ROWS:].tolist() == [row[:6] for row in rows[COMPACT_FROM_ROWS:]]
