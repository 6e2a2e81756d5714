"""Atomic writes: a file is complete, or unchanged."""

import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from minitx.config.errors import ConfigError

UNFINISHED = ".part"
"""Suffix of a file that is being written."""


@contextmanager
def written_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """A temporary file in the folder of `path`, fsynced and renamed at the end of the block, or removed.

    `path` is never half written, whatever ends the process, and two writers do not mix.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_unfinished(folder: str | Path) -> None:
    """Remove the temporary files of killed processes from a folder that no other process is writing to."""
    for path in Path(folder).iterdir():
        if re.fullmatch(rf"\..+\.\w{{8}}{re.escape(UNFINISHED)}", path.name) and path.is_file():
            path.unlink(missing_ok=True)


def writable(path: str | Path) -> Path:
    """Check that a file can be written, before the work whose result it takes.

    Raises:
        ConfigError: it cannot be written.
    """
    path = Path(path)
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror})") from None
    if not existed:
        path.unlink()
    return path


def writable_folder(path: str | Path) -> Path:
    """Check that a folder can be written to; create a missing one.

    Raises:
        ConfigError: it cannot be written.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"the folder {path} cannot be written ({error.strerror})") from None
    return path
