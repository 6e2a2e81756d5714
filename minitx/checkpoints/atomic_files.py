"""Atomic writes: a file is complete, or unchanged. Locks of folders."""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

UNFINISHED = ".part"
"""Suffix of a file that is being written."""


@contextmanager
def written_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """A temporary file in the folder of `path`, fsynced and renamed at the end of the block, or removed.

    `path` is never half written, whatever ends the process, and two writers do not mix. An OSError names `path`.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}{UNFINISHED}")  # at most 255 bytes
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


def remove_unfinished(folder: str | Path) -> None:
    """Remove the temporary files of killed processes from a folder that no other process is writing to."""
    for path in Path(folder).iterdir():
        if re.fullmatch(rf"\..+\.\w{{8}}{re.escape(UNFINISHED)}", path.name) and path.is_file():
            path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, shared: bool = False) -> Iterator[bool]:
    """Lock a folder, or raise a BlockingIOError; False on a system or a filesystem without locks.

    Several processes may have a shared lock, which waits for the end of another. A lock ends with its process, however
    that ends, and leaves no file.
    """
    if fcntl is None:
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
            works = True
        except BlockingIOError:
            raise
        except OSError:
            works = False
        yield works
    finally:
        os.close(descriptor)
