"""Writing with a compiled step: torch makes a program for one token, which then runs for each. It knows ids only."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

FIRST_ROOM = 64
"""Tokens for which a compiled step makes room at first, and its unit: so one program serves texts of many lengths."""
PROGRAMS = 64
"""The most programs kept for one class of models: one for each model, batch size and room."""


class CompiledStep:
    """The step of a model for one token a row and call.

    Attention over room that is not used yet costs as much as over room that is, so the room begins small and doubles;
    each size is another program, made once and kept on disk by torch.

    Args:
        model: has `step`, and `fix` for its cache.
        cache: has read the prompt; left as it is.
        total: tokens that there will ever be, the prompt's included.

    Raises:
        ValueError: the model's cache cannot be fixed.
    """

    def __init__(self, model: Any, cache: Any, total: int) -> None:
        self._model, self._used = model, cache.length
        self._kind: Any = type(model)
        self._whole = _multiple(total)
        self._room = min(self._whole, _multiple(cache.length + 1))
        self._cache = model.fix(cache, self._room)
        self._known = False  # whether this model, batch and room have been through the compiler's checks

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits [B, 1, V] after one more token for each row, [B, 1]."""
        if self._used == self._room:
            self._room = min(self._whole, 2 * self._room)
            self._cache.grow(self._room)
            self._known = False
        self._used += 1
        step = program(self._kind, ids.device.type)
        if self._known:
            # Nothing has changed since the call before: the program need not check that again (a tenth of its time).
            with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
                return step(self._model, ids, self._cache)
        self._known = True
        with torch._dynamo.config.patch(recompile_limit=PROGRAMS):
            return step(self._model, ids, self._cache)


@functools.cache
def program(kind: Any, device: str) -> Any:
    """The step of a class of models, compiled, with a driver in C++ on a CPU, where Python's share would count."""
    return torch.compile(kind.step, dynamic=False, options={"cpp_wrapper": True} if device == "cpu" else None)


def _multiple(tokens: int) -> int:
    return -(-tokens // FIRST_ROOM) * FIRST_ROOM
