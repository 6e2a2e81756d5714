"""A decoding step on a GPU as a CUDA graph, which launches all of its kernels at once.

A GPU computes the step of a small model sooner than Python launches its kernels, one by one. The graph holds them with
the memory that they use, and appends to the buffers of the cache itself, so that the model may take the next step.
"""

import math
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.compilation.recorded_step import advance, equal_but_for_rounding, newest
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
    """Whether this is the main thread, without others but daemons: what they compute during a capture may fail."""
    main = threading.main_thread()
    others = [thread for thread in threading.enumerate() if thread is not main]
    return threading.current_thread() is main and all(thread.daemon for thread in others)


class SharedCache(StaticCache):
    """The keys and values of another cache, in its own buffers; its tokens and their mask, copied."""

    def grow(self, capacity: int) -> None:
        """Pad tokens and mask to the capacity of the buffers; NaN in the rest of these would spoil all sums."""
        self.length = capacity
        self.ids, self.keep = (F.pad(part, (0, capacity - part.size(-1))) for part in (self.ids, self.keep))
        for index, layer in self.layers.items():
            layer.buffers = self.source.layers[index].buffers
            for buffer in layer.buffers:
                buffer[:, :, self.source.length :] = 0


class GraphedStep:
    """The steps of one token for each row into the buffers of a cache, until these are full.

    Args:
        model: has `compute_step`.
        ids: [B, 1], the token that was appended last; it is appended again, at the same place.
        cache: one that can be captured, without a window.

    Raises:
        Exception: the step cannot be captured, such as one that reads numbers from the GPU.
    """

    def __init__(self, model: Any, ids: Tensor, cache: Cache) -> None:
        self._compute_step, self._ids = model.compute_step, ids.clone()
        self._cache = SharedCache(cache, cache.layers[0].buffers[0].size(2))
        del self._cache.source  # which is kept alive by nobody but the caller
        last = self._cache.at.sub_(1).clone()
        stream = warm_up(self._compute, ids.device)
        self._cache.at.copy_(last)
        self._replay = captured(self._compute, stream)
        self.seconds = math.inf
        for _ in range(3):  # the first time, the graph is sent to the GPU
            self._cache.at.copy_(last)
            self.seconds = min(self.seconds, timed(self._replay, ids.device)[1])

    def _compute(self) -> None:
        kernels.in_graph = True
        try:
            self.logits = self._compute_step(self._ids, self._cache)
        finally:
            kernels.in_graph = False

    def __call__(self, ids: Tensor, cache: Cache) -> Tensor:
        """Logits [B, 1, V] after one more token for each row, [B, 1]."""
        assert cache.ids is not None
        self._ids.copy_(ids)
        self._replay()
        cache.ids = torch.cat((cache.ids, ids), dim=1)
        cache.keep = None if cache.keep is None else F.pad(cache.keep, (0, 1), value=True)
        advance(cache, 1)
        return self.logits.clone()


def graphed(model: Any, ids: Tensor, cache: Cache, logits: Tensor, seconds: float) -> GraphedStep | None:
    """Capture a step; None if its graph computes other logits, or the same in more time.

    Args:
        model, ids, cache: as for GraphedStep.
        logits: [B, 1, V] after `ids`, without a graph.
        seconds: that they took.

    Raises:
        Exception: the step cannot be captured; a user's module may refuse the capacity of the buffers.
    """
    places = newest(cache, 1)
    written = [place.clone() for place in places]
    try:
        with restored_if_failed(ids.device):
            graph = GraphedStep(model, ids, cache)
        if graph.seconds < seconds and equal_but_for_rounding(graph.logits, logits):
            return graph
    finally:
        for place, own in zip(places, written, strict=True):
            place.copy_(own)
    return None
