"""The compiled step of a decoder; on a GPU, as a CUDA graph.

Legend: B rows, V vocabulary.
"""

import functools
from typing import Any, ClassVar

import torch
from torch import Tensor

from minitx.compilation.graphed_step import CapturedStep
from minitx.compilation.recorded_step import can_capture, have_own_function, hooks_and_attentions
from minitx.compilation.static_cache import StaticBeamCache, StaticCache
from minitx.config.errors import ConfigError
from minitx.hardware.captures import restored_if_failed
from minitx.nn.cache import BeamCache
from minitx.nn.multi_head import uses_autocast

CAPACITY_UNIT = 64
"""Tokens: the first capacity of a static cache, and its unit, so that one program serves texts of many lengths."""
MAX_PROGRAMS = 64
"""Maximum number of programs of a class of models, one for each model, batch size and capacity. One more drops all."""


class CompiledStep:
    """The compiled step of a model: one token per text and call.

    Attention to empty capacity costs as much as to tokens, so the capacity is small at first and doubles; each
    capacity has its own program, compiled once and kept on disk by torch. On a GPU a CUDA graph launches its kernels
    together; not with beams, whose tensors change addresses.

    Args:
        model: a decoder; its class has `step`.
        cache: holds the prompt, whose keys and values are copied; its rows must not be removed.
        total: maximum number of tokens of a row, including the prompt's.

    Raises:
        ConfigError: a model with a window, or with hooks, which a compiled step does not call.
    """

    _latest_identity: ClassVar[object] = None
    """Identity of the step that ran last."""

    def __init__(self, model: Any, cache: Any, total: int) -> None:
        self._hooks, self._attentions = hooks_and_attentions([*model.modules()])
        self._functions: list[Any] = []  # of the attentions, when the guards passed
        self._model, self._source, self._total = model, cache, _whole_units(total)
        self._step = compiled_step(model.__class__, cache.ids.device.type)
        copy = StaticBeamCache if isinstance(cache, BeamCache) else StaticCache
        self._cache = copy(cache, min(self._total, _whole_units(cache.length + 1)))
        self._graph: CapturedStep | None = None
        self._identity = object()  # the class must not keep a step, which has a cache
        self._checked = False  # whether the compiler's guards have passed with this model, batch and capacity
        self._is_graphed = can_capture(cache) and not uses_autocast(cache.ids)

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits [B, 1, V] after one more token for each row, [B, 1]; with W beams, [B, W, V] after [B, W]."""
        if any(self._hooks):
            reason = "whose hooks a compiled step does not call"
            raise ConfigError(f"compile must be false under trace or intervene, {reason}")
        if (functions := [part.attention for part in self._attentions]) != self._functions:
            self._functions, self._checked, self._graph = functions, False, None
        if (tokens := self._source.length + ids.size(1)) > self._cache.length:
            self._cache.grow(min(self._total, max(2 * self._cache.length, _whole_units(tokens))))
            self._checked = False
        self._cache.before_step(ids, self._model.decoder.position_ids)
        if self._graph is None:
            # Without guards, torch tries the program that ran last first, and may read parts that this model lacks.
            self._checked &= CompiledStep._latest_identity is self._identity
            CompiledStep._latest_identity = self._identity
        if self._is_graphed and not self._checked and have_own_function(self._attentions):
            self._checked, self._graph = True, None  # frees the memory of an earlier graph for the next one
            try:
                with restored_if_failed(ids.device):
                    self._graph = CapturedStep(self._guarded, ids, self._cache)
            except RuntimeError:  # such as a position scheme that waits for the GPU
                self._is_graphed = self._checked = False
        if self._graph is not None:
            return self._graph.replay(ids)
        if self._checked:
            # Nothing has changed since the last call, and the guards take a tenth of the time.
            with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
                return self._step(self._model, ids, self._cache)
        self._checked = True
        return self._guarded(ids, self._cache)

    def _guarded(self, ids: Tensor, cache: StaticCache) -> Tensor:
        """A step by the program whose guards pass, or by a new one, also within a force_eager block."""
        with torch.compiler.set_stance("default"), torch._dynamo.config.patch(recompile_limit=MAX_PROGRAMS):
            try:
                with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
                    return self._step(self._model, ids, cache)
            except torch._dynamo.exc.FailOnRecompileLimitHit:  # instead of a step that is not compiled
                torch.compiler.reset()
                return self._step(self._model, ids, cache)


def _whole_units(tokens: int) -> int:
    return -(-tokens // CAPACITY_UNIT) * CAPACITY_UNIT


@functools.cache
def compiled_step(kind: Any, device: str) -> Any:
    """Compile the step of a class of models; on a CPU with a C++ wrapper: one in Python takes a noticeable time."""
    return torch.compile(kind.compute_step, dynamic=False, options={"cpp_wrapper": True} if device == "cpu" else None)
