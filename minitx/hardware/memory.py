"""Memory that a step of training or evaluation has freed, kept by the process for the next step."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
MAX_KEPT_BYTES = 2**25
"""Largest block that is kept, and glibc's maximum. Larger free blocks would be split by small allocations between two
steps, and the next step would allocate others."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Make glibc keep freed memory within the block, and return it to the system at the end.

    By default glibc returns free memory after every step, and in the next one the system zeroes its pages again: a
    tenth of a step's time. Nothing changes with another C library, or if the environment configures glibc
    (MALLOC_..., GLIBC_TUNABLES).
    """
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    configured = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if libc is None or configured or not all(hasattr(libc, name) for name in ("mallopt", "malloc_trim")):
        yield
        return
    libc.mallopt(_M_MMAP_THRESHOLD, MAX_KEPT_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, -1)  # never: as unsigned, the largest threshold
    try:
        yield
    finally:
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * MAX_KEPT_BYTES)  # twice the other one, which is glibc's own rule
        libc.malloc_trim(0)
