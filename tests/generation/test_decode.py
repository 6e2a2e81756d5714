"""The decoding loop: first with scripted models, then with real ones against forwards without a cache."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from minitx.generation.decode import generate, steps

VOCABULARY = 12
PAD, EOS = 0, 2


class Scripted:
    """Prefers script[row][n] at its n-th step; records what it reads."""

    def __init__(self, *script: list[int]) -> None:
        self.script = script
        self.starts: list[tuple[Tensor, ...]] = []
        self.reads: list[tuple[list[list[int]], list[list[bool]] | None]] = []

    def start(self, *source: Tensor) -> Any:
        self.starts.append(source)
        return SimpleNamespace(length=0)

    def step(self, ids: Tensor, cache: Any, keep: Tensor | None = None) -> Tensor:
        logits = torch.zeros(*ids.shape, VOCABULARY)
        for row, tokens in enumerate(self.script):
            logits[row, -1, tokens[len(self.reads)]] = 1.0
        self.reads.append((ids.tolist(), None if keep is None else keep.tolist()))
        return logits


class Counting:
    """Prefers the latest token plus one; records the ids of the first row for each new cache."""

    def __init__(self) -> None:
        self.reads: list[list[int]] = []

    def start(self) -> Any:
        self.reads.append([])
        return SimpleNamespace(length=0)

    def step(self, ids: Tensor, cache: Any, keep: Tensor | None = None) -> Tensor:
        self.reads[-1] += ids[0].tolist()
        return torch.nn.functional.one_hot((ids + 1) % 1000, 1000).float()


def write(model: Any, ids: list[list[int]], *source: Tensor, **options: Any) -> list[list[int]]:
    options = {"max_new_tokens": 5, "eos": EOS, "pad": PAD, **options}
    return generate(model, torch.tensor(ids), *source, **options).ids.tolist()


def test_the_prompt_is_read_once_and_then_each_new_token() -> None:
    model, keep = Scripted([5, 6, 7], [8, EOS, 9]), torch.tensor([[True, True], [False, True]])
    write(model, [[3, 4], [PAD, 4]], max_new_tokens=3, keep=keep)
    assert model.reads == [([[3, 4], [PAD, 4]], keep.tolist()), ([[5], [8]], None), ([[6], [EOS]], None)]
    assert model.starts == [()]


def test_steps_are_computed_on_demand() -> None:
    model: Any = Scripted([5, EOS, 9], [6, 7, EOS])
    several = steps(model, torch.tensor([[3], [3]]), max_new_tokens=4, eos=EOS, pad=PAD)
    assert next(several).ids.tolist() == [5, 6]
    assert len(model.reads) == 1
    assert [step.ids.tolist() for step in several] == [[EOS, 7], [PAD, EOS]]


# ---- a context that fills up -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [1, 2, 7, 50])
def test_decoding_continues_past_the_context(context: int) -> None:
    model = Counting()
    assert write(model, [[10]], max_new_tokens=40, context=context) == [list(range(11, 51))]
    assert max(map(len, model.reads)) <= context


def test_a_prompt_as_long_as_the_context_is_read_whole_before_it_is_halved() -> None:
    model = Counting()
    assert write(model, [[1, 2, 3, 4]], max_new_tokens=3, context=4) == [[5, 6, 7]]
    assert model.reads == [[1, 2, 3, 4], [4, 5, 6]]


def test_padding_stays_hidden_in_the_last_half_of_a_context() -> None:
    model = Scripted([5, 6], [5, 6])
    keep = torch.tensor([[True] * 8, [False] * 7 + [True]])
    write(model, [[3, 4, 5, 6, 7, 8, 9, 10], [PAD] * 7 + [11]], keep=keep, context=8, max_new_tokens=2)
    assert len(model.starts) == 2
    assert model.reads[1] == ([[8, 9, 10, 5], [PAD, PAD, 11, 5]], [[True] * 4, [False, False, True, True]])


def test_a_row_without_a_possible_token_has_no_log_probability() -> None:
    """A row that has ended has failed in no case."""

    def forbid(logits: Tensor, history: Tensor, keep: Tensor | None, generated: int) -> Tensor:
        return logits if generated < 2 else torch.full_like(logits, -torch.inf)

    options = {"max_new_tokens": 4, "eos": EOS, "pad": PAD, "scores": True}
    model = Scripted([5, EOS, 0, 0], [5, 6, 7, EOS])
    failed = generate(model, torch.tensor([[1], [1]]), **options, logits_processor=forbid).log_probabilities
    assert failed is not None
    assert failed.isnan().tolist() == [False, True]
