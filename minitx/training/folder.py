"""Where a run lands, runs/NAME/vN, and how it is written to."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.atomic_files import remove_unfinished, written_whole
from minitx.config.errors import ConfigError
from minitx.config.schema import Config


def run_root(config: Config) -> Path:
    """The folder of all versions of a run.

    Raises:
        ConfigError: a name that is no folder's.
    """
    if not re.fullmatch(r"[\w.+-]+", config.run.name) or config.run.name in (".", ".."):
        raise ConfigError(f"run.name must be a plain folder name, got {config.run.name!r}")
    return Path(config.run.folder).expanduser() / config.run.name


@contextmanager
def new_folder(config: Config) -> Iterator[Path]:
    """The folder of a new version, made now; no other training writes to it inside the block.

    Raises:
        ConfigError: a folder that cannot be written.
    """
    root = run_root(config)
    existing = checkpoint.versions(root)
    number = int(existing[-1].name[1:]) + 1 if existing else 0
    if not is_first_process():
        yield root / f"v{number}"  # the first process makes it, and tells Lightning in the others
        return
    try:
        while not _made(root / f"v{number}"):
            number += 1
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise _unwritable(root / f"v{number}", error) from None
    with _alone(root / f"v{number}") as folder:
        yield folder


@contextmanager
def old_folder(folder: Path) -> Iterator[Path]:
    """The folder of a run that goes on, without what a killed process left unfinished; alone as new_folder's.

    Raises:
        ConfigError: a folder that cannot be written, or that another process is writing to.
    """
    if not is_first_process():
        yield folder
        return
    with _alone(folder):
        try:
            remove_unfinished(folder)
        except OSError as error:
            raise _unwritable(folder, error) from None
        yield folder


def _made(folder: Path) -> bool:
    """Make a folder; False where another run has made it at the same moment."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


@contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """A folder that can be written, and that no other training writes to before the end of the block.

    The lock lies on the folder itself and ends with the process, however that ends: nothing is left to be removed.

    Raises:
        ConfigError: it cannot be written, or another process has it.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"--resume: another process is training in {folder}: wait until it has ended, or stop it first"
        ) from None
    except OSError:
        pass  # a filesystem without locks
    try:
        yield folder
    finally:
        os.close(descriptor)


def _unwritable(folder: Path, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else error
    return ConfigError(f"run.folder: {str(folder)!r} cannot be written ({reason})")


def is_first_process() -> bool:
    """Whether this is the process that writes files and prints, known before there is a Trainer."""
    return not int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def say(line: str, end: str = "\n", to_errors: bool = False) -> None:
    """Print at once; where standard output itself goes to a full disk, the line is lost and the run is not."""
    try:
        print(line, end=end, flush=True, file=sys.stderr if to_errors else sys.stdout)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


class RunFiles:
    """Writes into a run's folder. An error ends the run; training/resilience/disk.py has files that outlive it.

    Args:
        folder: the run's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = folder / "last.ckpt"
        self.saved: int | None = None  # the step of last.ckpt, once this run has written or read it
        self.troubles: dict[str, str] = {}  # what could not be written the last time, and why

    def keep(self, name: str, contents: bytes) -> None:
        """Write a file before any work.

        Raises:
            ConfigError: the folder cannot be written.
        """
        try:
            self._write(name, contents)
        except OSError as error:
            raise ConfigError(f"run.folder: {self.folder} cannot be written ({error.strerror})") from None

    def check(self) -> None:
        """Training has ended: is it saved?"""

    def keep_result(self, name: str, contents: bytes) -> None:
        """Write the last file of a run."""
        self._write(name, contents)

    def writing(self, what: str, otherwise: str) -> AbstractContextManager[None]:
        """A block that writes something into the folder.

        Args:
            what: is written.
            otherwise: what is there instead where it cannot be, and what will be done about it.
        """
        return nullcontext()

    def _write(self, name: str, contents: bytes) -> None:
        with written_whole(self.folder / name) as file:
            file.write(contents)
