"""Freed memory is kept between steps, unless the environment configures it."""

import ctypes
import platform
import resource
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from minitx.hardware.memory import freed_memory_kept
from tests.training.interrupting import FORK

BLOCKS, BLOCK = 12, 4_000_000  # freed together, as after a backward: more than glibc keeps by default


def page_faults() -> int:
    """Page faults of allocating all blocks, filling and freeing them."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.zeros(BLOCK).add_(1.0) for _ in range(BLOCKS)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def measure(answer: Connection) -> None:
    ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a page of 2 MB would be one fault for 512
    with freed_memory_kept():
        inside = min(page_faults() for _ in range(6))  # a step can still find a gap taken by a small allocation
        resident = resident_pages()
    answer.send((inside, resident - resident_pages(), page_faults()))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_memory_is_kept_within_the_block_and_returned_after_it() -> None:
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=measure, args=(theirs,))
    process.start()
    inside, returned, after = ours.recv()
    process.join()
    pages = BLOCKS * BLOCK * 4 // resource.getpagesize()
    assert inside < 0.1 * pages
    assert returned > 0.7 * pages
    assert after > 0.7 * pages, "the system fills pages again"


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_environment_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    library = Mock()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    with freed_memory_kept():
        pass
    assert not library.mock_calls
    monkeypatch.delenv(name)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # another library, which has no mallopt
    with freed_memory_kept():
        pass
