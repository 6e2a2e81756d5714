"""Captures of CUDA graphs."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@functools.cache  # libraries keep memory for each stream
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def warm_up(compute: Callable[[], Any], device: torch.device) -> torch.cuda.Stream:
    """Compute once what is to be captured, because libraries allocate memory in their first calls.

    Returns:
        The stream that it ran on, which is the one to capture on.
    """
    aside = _stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        compute()
    torch.cuda.current_stream(device).wait_stream(aside)
    return aside


def captured(compute: Callable[[], Any], stream: torch.cuda.Stream, pool: Any = None) -> Callable[[], None]:
    """Capture the kernels of a computation as a CUDA graph; returns the function that runs them on the same memory.

    Tensors that `compute` stores are computed by the first call of that function. Graphs of one pool share the memory
    of freed tensors. Work of other threads on the GPU does not end the capture, but may itself fail.
    """
    graph = torch.cuda.CUDAGraph()
    capture = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    with torch.cuda.device(stream.device), capture:
        compute()
    return graph.replay


@contextmanager
def restored_if_failed(device: torch.device) -> Iterator[None]:
    """Restore the default stream and the state of the random generator if a capture in the `with` block fails.

    A failed capture leaves the random generator unusable.
    """
    random = torch.cuda.get_rng_state(device)
    try:
        yield
    except Exception:
        torch.cuda.set_stream(torch.cuda.default_stream(device))
        torch.cuda.default_generators[device.index].graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
        torch.cuda.set_rng_state(random, device)
        raise
