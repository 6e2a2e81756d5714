"""Steps captured as a CUDA graph; on a CPU a graph is the step itself, on tensors that stay in their place."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.utils._device import device_decorator

from minitx.compilation import graphed_step, recorded_step, replay
from minitx.nn import cache as nn_cache
from small_models import DECODERS, PAIRINGS, build_tiny, pairwise
from tests.compilation.test_replay import check_equal

compare = partial(check_equal, steps=30)


@pytest.fixture(autouse=True)
def captures(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> list[Any]:
    """The captures, after two steps. Each graph is faster than the step; buffers hold NaN after their tokens."""
    seen: list[Any] = []
    device, clock = pytestconfig.getoption("--device"), itertools.count()
    capture = graphed_step.captured if device != "cpu" else lambda step, stream: step
    if device == "cpu":
        monkeypatch.setattr(graphed_step, "warm_up", lambda step, device: step())
        monkeypatch.setattr(graphed_step, "restored_if_failed", nullcontext)
    monkeypatch.setattr(graphed_step, "captured", lambda *given: seen.append(given) or capture(*given))
    monkeypatch.setattr(recorded_step, "GRAPH_DEVICES", (device,))
    monkeypatch.setattr(graphed_step, "timed", lambda run, device: (run(), -next(clock)))
    monkeypatch.setattr(replay, "STEPS_BEFORE", 2)
    monkeypatch.setattr(replay, "STEPS_AFTER", 4)
    monkeypatch.setattr(nn_cache, "FIRST_CAPACITY", 16)
    monkeypatch.setattr(nn_cache, "NEXT_CAPACITY", {device: 64})
    return seen


@pairwise({"name,numbering": PAIRINGS, "architecture": DECODERS, "padded": [False, True]})
def test_equal_to_the_step(architecture: str, padded: bool, name: str, numbering: str, captures: list[Any]) -> None:
    compare(build_tiny(architecture, name, numbering), padded)
    assert len(captures) == 2 * (name != "all_hooks"), "one for each size of the buffers; none of a user's own scheme"


def test_rows_that_leave_and_steps_of_the_modules_in_between(captures: list[Any]) -> None:
    """A graph keeps the cache complete, and sees what others do to it; rows that have changed wait for their own."""
    model = build_tiny("decoder_only", "alibi")

    def between(count: int, cache: Any) -> None:
        if count == 18:
            model.compute_step(torch.ones(3, 1, dtype=torch.long), cache)
        if count == 20:
            cache.select(torch.tensor([2, 0]))
        if count == 26:
            model.step(torch.ones(2, 2, dtype=torch.long), cache)

    compare(model, padded=True, between=between)
    assert [len(step.__self__._ids) for step, _ in captures] == [3, 3, 2, 2]
    compare(model, between=lambda count, cache: cache.select(torch.tensor([1, 0, 2])))
    assert len(captures) == 4, "none for rows that change in each step"


def test_a_graph_that_is_slower_or_other_than_the_step_is_not_tried_again(captures: list[Any], monkeypatch) -> None:
    model = build_tiny("decoder_only", "rope")
    with monkeypatch.context() as slow:
        slow.setattr(graphed_step, "timed", lambda run, device: (run(), 1.0))
        compare(model)
    compare(model)
    assert len(captures) == 2
    shared = graphed_step.SharedCache.append
    monkeypatch.setattr(graphed_step.SharedCache, "append", lambda cache, *given: shared(cache, *given) + 1)
    compare(build_tiny("decoder_only", "rope"))
    assert len(captures) == 4


@pytest.mark.parametrize("error", [RuntimeError("reads numbers"), ValueError("a capacity of more tokens than I take")])
def test_a_step_that_cannot_be_captured_is_tried_once(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_step, "captured", failing := Mock(side_effect=error))
    compare(build_tiny("decoder_only", "rope"))
    assert failing.call_count == 1


def test_where_nothing_is_captured(captures: list[Any]) -> None:
    """With a window; in a thread, or beside one."""
    compare(build_tiny("decoder_only", "rope", window=40))
    model = build_tiny("decoder_only", "rope")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(device_decorator(model.head.weight.device, compare), model).result()
        compare(model)
    assert captures == []
    compare(model)
    assert len(captures) == 2
