"""A line on stderr that tells how far long work has come; nothing for short work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds of work before anything is said."""


def told(
    parts: Iterable[T],
    what: str,
    size: Callable[[T], int],
    total: int | None = None,
    unit: tuple[str, float] = (" MB", 1e6),
) -> Iterator[T]:
    """Hand on the parts of some work; when it takes long, say how much is done: "encoding: 312 MB of 1,024 MB".

    Rewritten in place on a terminal; elsewhere a line now and then.

    Args:
        parts: what is worked on, one after the other.
        what: is being done.
        size: of a part, in bytes.
        total: bytes of all parts, where that is known.
        unit: in which sizes are told, with the space before it, and how large it is.
    """
    in_place = sys.stderr.isatty()
    start, end = ("\r\033[2K", "") if in_place else ("", "\n")
    due = time.monotonic() + PATIENCE
    done, said = 0, False
    name, one = unit
    goal = "" if total is None else f" of {total / one:,.0f}{name}"
    try:
        for part in parts:
            yield part
            done += size(part)
            if time.monotonic() >= due:
                print(f"{start}{what}: {done / one:,.0f}{name}{goal}", end=end, file=sys.stderr, flush=True)
                due = time.monotonic() + (0.2 if in_place else 10.0)
                said = True
    finally:
        if said and in_place:
            print("\r\033[2K", end="", file=sys.stderr, flush=True)
