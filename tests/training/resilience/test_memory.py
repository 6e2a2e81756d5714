"""Memory is kept between steps, unless somebody has decided otherwise."""

import ctypes
import platform
import subprocess
import sys
from typing import Any

import pytest

from minitx.training.resilience.memory import KeepFreedMemory

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
# Blocks freed together, as after a backward: more than glibc keeps by itself.
SCRIPT = """
import resource, torch
from minitx.training.resilience.memory import KeepFreedMemory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.zeros(4_000_000).add_(1.0) for _ in range(12)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with KeepFreedMemory().around():
    for _ in range(10):
        faults()
    print(faults())
    resident = int(open("/proc/self/statm").read().split()[1])
print(resident - int(open("/proc/self/statm").read().split()[1]))
print(faults())
"""


@needs_glibc
def test_memory_is_kept_inside_the_block_and_given_back_behind_it() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    inside, returned, behind = map(int, done.stdout.split())
    pages = 12 * 4_000_000 * 4 // 4096
    assert inside < 0.1 * pages
    assert returned > 0.7 * pages
    assert behind > 0.7 * pages, "and then the system has to fill pages again"


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_environment_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(ctypes, "CDLL", _Refusing)
    with KeepFreedMemory().around():
        pass


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with KeepFreedMemory().around():
        pass


class _Refusing:
    def __init__(self, name: Any) -> None:
        pass

    def mallopt(self, *words: int) -> None:
        raise AssertionError("nobody asked for this")

    malloc_trim = mallopt
