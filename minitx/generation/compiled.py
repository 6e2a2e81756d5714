"""Decoding with a compiled step: torch compiles a program for one token, which then runs for each. Ids only."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

CAPACITY_UNIT = 64
"""Tokens: the first capacity of a static cache, and its unit, so that one program serves texts of many lengths."""
MAX_PROGRAMS = 64
"""The most programs kept for one class of models: one for each model, batch size and capacity."""


class CompiledStep:
    """The compiled step of a model: one token per row and call.

    Attention to empty capacity costs as much as to tokens, so the capacity is small at first and doubles; each
    capacity has its own program, compiled once and kept on disk by torch.

    Args:
        model: has `step` and `static_cache`.
        cache: holds the prompt; not changed.
        total: the most tokens of a row, the prompt's included.

    Raises:
        ValueError: a model without a static cache.
    """

    def __init__(self, model: Any, cache: Any, total: int) -> None:
        self._model, self._used = model, cache.length
        self._kind: Any = type(model)
        self._total = _multiple(total)
        self._capacity = min(self._total, _multiple(cache.length + 1))
        self._cache = model.static_cache(cache, self._capacity)
        self._checked = False  # whether the compiler's guards have passed with this model, batch and capacity

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits [B, 1, V] after one more token for each row, [B, 1]."""
        if self._used == self._capacity:
            self._capacity = min(self._total, 2 * self._capacity)
            self._cache.grow(self._capacity)
            self._checked = False
        self._used += 1
        step = program(self._kind, ids.device.type)
        if self._checked:
            # Nothing has changed since the last call, and checking that takes a tenth of the time.
            with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
                return step(self._model, ids, self._cache)
        self._checked = True
        with torch._dynamo.config.patch(recompile_limit=MAX_PROGRAMS):
            return step(self._model, ids, self._cache)


@functools.cache
def program(kind: Any, device: str) -> Any:
    """Compile the step of a class of models; on a CPU with a C++ wrapper, because Python would take a visible share."""
    return torch.compile(kind.step, dynamic=False, options={"cpp_wrapper": True} if device == "cpu" else None)


def _multiple(tokens: int) -> int:
    return -(-tokens // CAPACITY_UNIT) * CAPACITY_UNIT
