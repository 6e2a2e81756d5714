"""Atomic writes: a file is complete, or unchanged."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

UNFINISHED = ".part"  # suffix of a file that is being written


@contextmanager
def written_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """A temporary file in the folder of `path`, fsynced and renamed at the end of the block, or removed.

    `path` is never half written, whatever ends the process, and two writers do not mix. An OSError names `path`.
    """
    path = Path(os.path.expanduser(path))  # ~draft stays, if there is no such user
    if path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir()):
        with path.open("ab") as file:  # a device or a pipe, which renaming would replace
            yield file
        return
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
