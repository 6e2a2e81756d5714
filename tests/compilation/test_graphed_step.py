"""Steps captured as a CUDA graph; on a CPU a graph is the step itself, on tensors that stay in their place."""

import itertools
import math
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from minitx.compilation import graphed_step, recorded_step, replay
from minitx.nn import cache as nn_cache
from small_models import DECODERS, PAIRINGS, build_tiny, draw, keep_of, pairwise

ROWS, STEPS = 4, 30
Between = Callable[[int, Any], Any]


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
    for module, name, tokens in (
        (replay, "STEPS_BEFORE", 2), (replay, "STEPS_AFTER", 8),
        (nn_cache, "FIRST_CAPACITY", 16), (nn_cache, "NEXT_CAPACITY", 64),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, tokens)
    free = nn_cache.LayerCache.free_capacity

    def spoil(layer: nn_cache.LayerCache, *given: Any) -> None:
        free(layer, *given)
        for buffer in layer.buffers:
            buffer[:, :, layer.used :] = math.nan

    monkeypatch.setattr(nn_cache.LayerCache, "free_capacity", spoil)
    return seen


def check_equal(model: Any, padded: bool = False, between: Between = lambda count, cache: None) -> None:
    """Compare steps, replayed and graphed, with those of the modules."""
    ids, keep = draw(ROWS, 3), keep_of(3, 2, 3, 1, left=True) if padded else None
    source = (draw(ROWS, 5), keep_of(5, 3, 2, 5)) if hasattr(model, "encoder") else ()
    with torch.inference_mode():
        caches = model.start(*source), model.start(*source)
        for cache in caches:
            model.step(ids, cache, keep)
        for count in range(STEPS):
            for cache in caches:
                between(count, cache)
            ids = draw(len(caches[0].ids), 1)
            expected = model.compute_step(ids, caches[0])
            torch.testing.assert_close(model.step(ids, caches[1]), expected, rtol=1e-5, atol=1e-5)


@pairwise({"name,numbering": PAIRINGS, "architecture": DECODERS, "padded": [False, True]})
def test_equal_to_the_step(architecture: str, padded: bool, name: str, numbering: str, captures: list[Any]) -> None:
    check_equal(build_tiny(architecture, name, numbering), padded)
    assert len(captures) == 2, "one for each size of the buffers"


def test_rows_that_leave_and_steps_of_the_modules_in_between(captures: list[Any]) -> None:
    """A graph keeps the cache complete, and sees what others do to it; rows that have changed wait for their own."""
    model = build_tiny("decoder_only", "alibi")

    def between(count: int, cache: Any) -> None:
        if count == 18:
            model.compute_step(torch.ones(4, 1, dtype=torch.long), cache)
        if count == 20:
            cache.select(torch.tensor([3, 0]))
        if count == 26:
            model.step(torch.ones(2, 2, dtype=torch.long), cache)

    check_equal(model, padded=True, between=between)
    assert [len(step.__self__._ids) for step, _ in captures] == [4, 4, 2, 2]
    check_equal(model, between=lambda count, cache: cache.select(torch.tensor([1, 0, 3, 2])))
    assert len(captures) == 4, "none for rows that change in each step"


def test_a_graph_that_is_slower_or_other_than_the_step_is_not_tried_again(captures: list[Any], monkeypatch) -> None:
    model = build_tiny("decoder_only", "rope")
    with monkeypatch.context() as slow:
        slow.setattr(graphed_step, "timed", lambda run, device: (run(), 1.0))
        check_equal(model)
    assert len(captures) == 2
    check_equal(model)
    assert len(captures) == 2
    shared = graphed_step.SharedCache.append
    monkeypatch.setattr(graphed_step.SharedCache, "append", lambda cache, *given: shared(cache, *given) + 1)
    check_equal(build_tiny("decoder_only", "rope"))
    assert len(captures) == 4


@pytest.mark.parametrize("error", [RuntimeError("reads numbers"), ValueError("a capacity of more tokens than I take")])
def test_a_step_that_cannot_be_captured_is_tried_once(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_step, "captured", failing := Mock(side_effect=error))
    check_equal(build_tiny("decoder_only", "rope"))
    assert failing.call_count == 1


def test_where_nothing_is_captured(captures: list[Any]) -> None:
    """With a window; in a thread, or beside one."""
    check_equal(build_tiny("decoder_only", "rope", window=40))
    model, done = build_tiny("decoder_only", "rope"), threading.Event()
    threads = [threading.Thread(target=check_equal, args=(model,)), threading.Thread(target=done.wait)]
    for thread in threads:
        thread.start()
    threads[0].join()
    check_equal(model)
    done.set()
    threads[1].join()
    assert captures == []
    check_equal(model)
    assert len(captures) == 2
