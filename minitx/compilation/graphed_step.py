"""A decoding step on a GPU as a CUDA graph, which launches all of its kernels at once.

A GPU computes the step of a small model sooner than Python launches its kernels, one by one. The graph holds them with
the memory that they use, and appends to the buffers of the cache itself, so that the model may take the next step.
"""

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.compilation.recorded_step import newest
from minitx.compilation.static_cache import StaticCache
from minitx.hardware.captures import abandon_capture, captured, warm_up
from minitx.hardware.machine import finished_at
from minitx.nn import kernels
from minitx.nn.cache import Cache

GRAPH_DEVICES = ("cuda",)
"""Devices whose steps are captured."""
STEPS_BEFORE, STEPS_AFTER = 16, 32
"""Steps of the same rows before a capture, which takes as long as six, and those for which its buffers have room."""


def can_capture(cache: Cache) -> bool:
    """Whether the steps into a cache may become a graph: on a GPU, without beams and windows.

    Only in the main thread of a process without others, because what they launch during a capture may fail. Daemon
    threads, of progress lines and TensorBoard, launch nothing.
    """
    if type(cache) is not Cache or cache.layers[0].buffers[0].device.type not in GRAPH_DEVICES:
        return False
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    alone = threading.current_thread() is threading.main_thread() and all(thread.daemon for thread in others)
    return alone and all(layer.window is None for layer in cache.layers.values())


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
        cache: not for beams, and without a window.

    Raises:
        RuntimeError: the step cannot be captured, such as one that reads numbers from the GPU.
    """

    def __init__(self, model: Any, ids: Tensor, cache: Cache) -> None:
        self._compute_step, self._ids = model.compute_step, ids.clone()
        self._cache = SharedCache(cache, cache.layers[0].buffers[0].size(2))
        del self._cache.source  # the graph is kept for as long as its cache
        last = self._cache.at.sub_(1).clone()
        stream = warm_up(self._compute, ids.device)
        self._cache.at.copy_(last)
        self._replay = captured(self._compute, stream)
        for _ in range(2):  # the first time, the graph is sent to the GPU
            self._cache.at.copy_(last)
            began = finished_at(ids.device)
            self._replay()
            self.seconds = finished_at(ids.device) - began

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
        cache.advance(1)
        for layer in cache.layers.values():
            layer.used += 1
        return self.logits.clone()


def graphed(model: Any, ids: Tensor, cache: Cache, logits: Tensor, seconds: float) -> GraphedStep | None:
    """Capture a step, if its graph computes the same logits in less time.

    Args:
        model, ids, cache: as for GraphedStep.
        logits: [B, 1, V] after `ids`, without a graph.
        seconds: that they took.
    """
    places, random = newest(cache, 1), torch.cuda.get_rng_state(ids.device)
    written = [place.clone() for place in places]
    try:
        graph = GraphedStep(model, ids, cache)
        tolerance = torch.finfo(logits.dtype).eps ** 0.5
        if graph.seconds < seconds and torch.allclose(graph.logits, logits, rtol=tolerance, atol=tolerance):
            return graph
    except RuntimeError:
        abandon_capture(ids.device)
        torch.cuda.set_rng_state(random, ids.device)
    for place, own in zip(places, written, strict=True):
        place.copy_(own)
    return None
