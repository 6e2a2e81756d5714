"""The folder of a run, runs/NAME/vN: created, locked against a second training, and written to."""

import errno
import fcntl
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.atomic_files import remove_unfinished, written_whole
from minitx.config.errors import ConfigError
from minitx.config.schema import Config


def run_root(config: Config) -> Path:
    """The folder of all versions of a run; a ConfigError if run.name is not a folder name."""
    if not re.fullmatch(r"[\w.+-]+", config.run.name) or config.run.name in (".", ".."):
        raise ConfigError(f"run.name must be a plain folder name, got {config.run.name!r}")
    return Path(config.run.folder).expanduser() / config.run.name


@contextmanager
def new_folder(config: Config) -> Iterator[Path]:
    """Create the folder of a new version, and lock it within the block; a ConfigError if it cannot be written."""
    root = run_root(config)
    first = max((int(version.name[1:]) for version in checkpoint.versions(root)), default=-1) + 1
    if not is_first_process():
        yield root / f"v{first}"  # created by the first process, which broadcasts it through Lightning
        return
    for number in itertools.count(first):
        folder = root / f"v{number}"
        with refuse_unwritable(folder), suppress(FileExistsError):  # of another run, created in the meantime
            folder.mkdir(parents=True)
            break
    with _locked(folder):
        yield folder


@contextmanager
def old_folder(folder: Path) -> Iterator[Path]:
    """Lock the folder of a resumed run within the block, and remove the unfinished files of a killed process."""
    if not is_first_process():
        yield folder
        return
    with _locked(folder):
        with refuse_unwritable(folder):
            remove_unfinished(folder)
        yield folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder. The lock ends with the process, however that ends, and leaves no file."""
    with refuse_unwritable(folder), tempfile.TemporaryFile(dir=folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a filesystem without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"--resume: another process is training in {folder}: wait until it has ended, or stop it first"
                ) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def refuse_unwritable(folder: Path) -> Iterator[None]:
    """Report a write that fails before training as a ConfigError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"run.folder: {str(folder)!r} cannot be written ({reason})") from None


def is_first_process() -> bool:
    """Whether this process writes files and prints; works before there is a Trainer."""
    return not int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def print_line(line: str, end: str = "\n", to_errors: bool = False) -> None:
    """Print and flush. A line that does not fit on a full disk is dropped instead of ending the run."""
    try:
        print(line, end=end, flush=True, file=sys.stderr if to_errors else sys.stdout)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


class RunFiles:
    """Files in a run's folder. A failed write ends the run; training/resilience/disk.py has a tolerant subclass."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = folder / "last.ckpt"
        self.saved: int | None = None  # step of last.ckpt, once this process has written or read it
        self.failures: dict[str, str] = {}  # reason by file, for files whose latest write failed

    def write(self, name: str, contents: bytes) -> None:
        """Write a small file atomically."""
        with written_whole(self.folder / name) as file:
            file.write(contents)

    def check_saved(self) -> None:
        """Check that the end of training was saved."""

    def writing(self, name: str, fallback: str) -> AbstractContextManager[None]:
        """Return a context for any other write; after a failure, a message with the file's name and the fallback."""
        return nullcontext()
