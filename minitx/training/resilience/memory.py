"""Memory that a training step has let go of, kept for the next one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import lightning.pytorch as pl

from minitx.training.hooks import RunCallback

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_NEVER = -1  # the largest size there is
LARGEST = 2**25
"""Bytes of the largest block that is kept, the most that glibc takes. Larger ones, cut up by small ones between two
steps, would no longer fit the next time, and others would be made beside them."""


@contextmanager
def kept_memory() -> Iterator[None]:
    """Let the C library keep what is freed, and give it back to the system at the end of the block.

    By itself glibc returns memory whenever much of it is free, that is after every step, and in the next one the system
    fills it with zeros again: a tenth of a step's time. Where somebody has set up the C library in the environment
    (MALLOC_..., GLIBC_TUNABLES), or it is not glibc, nothing is changed.
    """
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    told = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if libc is None or told or not all(hasattr(libc, name) for name in ("mallopt", "malloc_trim")):
        yield
        return
    libc.mallopt(_M_MMAP_THRESHOLD, LARGEST)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        libc.malloc_trim(0)


class KeepFreedMemory(RunCallback):
    """Keeps freed memory for the next step, in the whole run."""

    def around(self, trainer: pl.Trainer) -> AbstractContextManager[None]:
        """See kept_memory."""
        return kept_memory()
