"""Locks of folders against other processes, and the removal of temporary files that killed processes left."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minitx.checkpoints.atomic_files import UNFINISHED

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def locked(folder: Path, shared: bool = False, wait: bool = False) -> Iterator[bool]:
    """Lock a folder; if it is locked, wait or raise a BlockingIOError. False on a system or a filesystem without locks.

    Several processes may hold a shared lock; it waits until none holds an exclusive one. A lock ends with its process,
    however that ends, and leaves no file.
    """
    if fcntl is None:
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB * (not wait))
            works = True
        except BlockingIOError:
            raise
        except OSError:
            works = False
        yield works
    finally:
        os.close(descriptor)


def remove_unfinished(folder: str | Path) -> None:
    """Remove the temporary files of killed processes from a folder that no other process is writing to."""
    for path in Path(folder).iterdir():
        if re.fullmatch(rf"\..+\.\w{{8}}{re.escape(UNFINISHED)}", path.name) and path.is_file():
            path.unlink(missing_ok=True)
