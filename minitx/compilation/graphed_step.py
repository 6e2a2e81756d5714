"""A decoding step on a GPU as a CUDA graph, which launches all of its kernels at once.

A GPU computes the step of a small model faster than Python launches its kernels one by one. The graph holds them with
the memory that they use, and appends to the buffers of the cache itself, so that the model may compute the next step.
"""

import math
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.compilation.recorded_step import advance, equal_but_for_rounding, newest_restored
from minitx.compilation.static_cache import StaticCache
from minitx.hardware.captures import captured, restored_if_failed, warm_up
from minitx.hardware.machine import finished_at
from minitx.nn import kernels
from minitx.nn.cache import Cache


def timed(run: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """The result of a call, and the seconds that it took."""
    began = finished_at(device)
    return run(), finished_at(device) - began


def is_alone() -> bool:
    """Whether this is the main thread and all others are daemons: what others compute during a capture may fail."""
    main = threading.main_thread()
    others = (thread for thread in threading.enumerate() if thread is not main)
    return threading.current_thread() is main and all(thread.daemon for thread in others)


class CapturedStep:
    """A step of one token for each row as a CUDA graph, until the cache is full.

    Args:
        step: from ids [B, 1] and the cache to logits [B, 1, V].
        ids: [B, 1], the token with which it is captured; the next call is for the same place in the cache.
        cache: in tensors that keep their addresses.

    Raises:
        RuntimeError: the step cannot be captured, such as one that reads numbers from the GPU.
    """

    def __init__(self, step: Callable[[Tensor, Any], Tensor], ids: Tensor, cache: StaticCache) -> None:
        self._step, self._ids, self._cache, at = step, ids.clone(), cache, cache.at.clone()
        stream = warm_up(self._compute, ids.device)
        cache.at.copy_(at)  # the warm-up has moved it
        self._replay = captured(self._compute, stream)

    def _compute(self) -> None:
        self.logits = self._step(self._ids, self._cache)

    def replay(self, ids: Tensor) -> Tensor:
        """Logits [B, 1, V] after one more token for each row, [B, 1]."""
        self._ids.copy_(ids)
        self._replay()
        return self.logits.clone()


class SharedCache(StaticCache):
    """The keys and values of another cache, in its own buffers, and copies of its tokens and their mask."""

    def grow(self, capacity: int) -> None:
        """Pad tokens and mask to the capacity of the buffers."""
        self.length = capacity
        self.ids, self.keep = (F.pad(part, (0, capacity - part.size(-1))) for part in (self.ids, self.keep))
        for index, layer in self.layers.items():
            layer.buffers = self.source.layers[index].buffers


class GraphedStep(CapturedStep):
    """The steps of a model into the buffers of a cache, until these are full.

    Args:
        model: has `compute_step`.
        ids: [B, 1], the token that was appended last; it is appended again, at the same place.
        cache: one that can be captured, without a window.

    Raises:
        Exception: the step cannot be captured, or refuses the capacity of the buffers.
    """

    def __init__(self, model: Any, ids: Tensor, cache: Cache) -> None:
        shared = SharedCache(cache, cache.layers[0].buffers[0].size(2))
        del shared.source  # REPLAYED, whose keys are weak, would keep it
        last = shared.at.sub_(1).clone()
        super().__init__(model.compute_step, ids, shared)
        self.seconds = math.inf
        for _ in range(3):  # the first replay also sends the graph to the GPU
            shared.at.copy_(last)
            self.seconds = min(self.seconds, timed(self._replay, ids.device)[1])

    def _compute(self) -> None:
        kernels.in_graph = True
        try:
            super()._compute()
        finally:
            kernels.in_graph = False

    def __call__(self, ids: Tensor, cache: Cache) -> Tensor:
        """Replay the step, and advance the cache."""
        assert cache.ids is not None
        logits = self.replay(ids)
        cache.ids = torch.cat((cache.ids, ids), dim=1)
        cache.keep = None if cache.keep is None else F.pad(cache.keep, (0, 1), value=True)
        advance(cache, 1)
        return logits


def graphed(model: Any, ids: Tensor, cache: Cache, logits: Tensor, seconds: float) -> GraphedStep | None:
    """Capture a step; None if its graph computes other logits, or the same in more time.

    Args:
        model, ids, cache: as for GraphedStep.
        logits: [B, 1, V] after `ids`, without a graph.
        seconds: the time of that step.

    Raises:
        Exception: the step cannot be captured; a user's module may refuse the capacity of the buffers.
    """
    with newest_restored(cache, 1):
        with restored_if_failed(ids.device):
            graph = GraphedStep(model, ids, cache)
        same = equal_but_for_rounding(graph.logits, logits)
    return graph if same and graph.seconds < seconds else None
