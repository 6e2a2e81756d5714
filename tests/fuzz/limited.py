"""Command lines in child processes with limits on memory and time, and what they took."""

import contextlib
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from minitx.cli.main import main

MAX_MEMORY = 8 * 2**30  # bytes of addresses
MAX_SECONDS = 15  # of processor time


class Outcome(NamedTuple):
    """How a command line ended."""

    code: int  # negative: minus the signal that ended it
    seconds: float  # of processor time
    peak: int  # bytes in memory, at most
    output: str  # of both streams

    @property
    def fault(self) -> str | None:
        """The failure, if there is one, in a word or two."""
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        if "Traceback" in self.output or "panicked" in self.output:
            return "traceback"
        if self.code == 2 and not self.output.strip().split("\n")[-1].startswith("minitx: "):
            return "no sentence"
        return None


def run(words: Sequence[str]) -> Outcome:
    """Call `minitx` with these words in a fork of this process, which has imported it already."""
    with tempfile.TemporaryFile() as output:
        if not (child := os.fork()):
            _call(words, output.fileno())
        _, status, usage = os.wait4(child, 0)
        output.seek(0)
        text = output.read().decode(errors="replace")
    seconds = usage.ru_utime + usage.ru_stime
    return Outcome(os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss * 1024, text)


def _call(words: Sequence[str], output: int) -> None:
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(20 * MAX_SECONDS)  # ends it asleep
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        with open(1, "w", closefd=False) as sys.stdout, open(2, "w", closefd=False) as sys.stderr:
            try:
                main(list(words))
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
            except BaseException:
                traceback.print_exc()
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
    finally:
        os._exit(code)
