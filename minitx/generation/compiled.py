"""Decoding with a compiled step: torch compiles the step of one token, which then runs for every token."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

CAPACITY_UNIT = 64
"""Unit and initial capacity of the cache in tokens, so that one program serves texts of many lengths."""
MAX_PROGRAMS = 64
"""Maximum number of programs for one class of models: one for each model, batch size and capacity."""


class CompiledStep:
    """The compiled step of a model, for one token per row and call.

    Attention over unused capacity takes as long as over tokens, so the capacity begins small and doubles. Each capacity
    is another program, which torch compiles once and caches on disk.

    Args:
        model: with `step`, and `fix` for a static cache.
        cache: with the prompt; it is not changed.
        total: maximum number of tokens, the prompt included.

    Raises:
        ValueError: the model has no static cache.
    """

    def __init__(self, model: Any, cache: Any, total: int) -> None:
        self._model, self._used = model, cache.length
        self._kind: Any = type(model)
        self._max_capacity = _multiple(total)
        self._capacity = min(self._max_capacity, _multiple(cache.length + 1))
        self._cache = model.fix(cache, self._capacity)
        self._guarded = False  # whether the compiler's guards have passed for this capacity

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits [B, 1, V] after one more token for each row, [B, 1]."""
        if self._used == self._capacity:
            self._capacity = min(self._max_capacity, 2 * self._capacity)
            self._cache.grow(self._capacity)
            self._guarded = False
        self._used += 1
        step = program(self._kind, ids.device.type)
        if self._guarded:
            # Only tensor contents have changed since the previous call; checking guards takes a tenth of the time.
            with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
                return step(self._model, ids, self._cache)
        self._guarded = True
        with torch._dynamo.config.patch(recompile_limit=MAX_PROGRAMS):
            return step(self._model, ids, self._cache)


@functools.cache
def program(kind: Any, device: str) -> Any:
    """The compiled step of a class of models; on a CPU with a C++ wrapper, where Python's share of the time matters."""
    return torch.compile(kind.step, dynamic=False, options={"cpp_wrapper": True} if device == "cpu" else None)


def _multiple(tokens: int) -> int:
    return -(-tokens // CAPACITY_UNIT) * CAPACITY_UNIT
