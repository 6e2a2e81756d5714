"""The folder of a run, runs/NAME/vN: created, locked against a second training, and written to."""

import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.atomic_files import UNFINISHED, locked, remove_unfinished, written_whole
from minitx.config.errors import ConfigError, expanded
from minitx.config.schema import Config


def run_root(config: Config) -> Path:
    """The folder of all versions of a run; a ConfigError if run.name is not a folder name."""
    if not re.fullmatch(r"[\w.+-]+", config.run.name) or config.run.name in (".", ".."):
        raise ConfigError(f"run.name must be a plain folder name, got {config.run.name!r}")
    return expanded(config.run.folder, "run.folder") / config.run.name


@contextmanager
def new_folder(config: Config) -> Iterator[Path]:
    """Create the folder of a new version, and lock it within the block; a ConfigError if it cannot be written."""
    root = run_root(config)
    newest = max((int(version.name[1:]) for version in checkpoint.versions(root)), default=0)
    if not is_first_process():
        yield root / f"v{newest}"  # the first process broadcasts its own through Lightning
        return
    with ExitStack() as stack:
        with refuse_unwritable(root):
            root.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(newest):
            folder = root / f"v{number}"
            with refuse_unwritable(folder), suppress(FileExistsError, BlockingIOError):  # of another run
                folder.mkdir(exist_ok=_is_unused(folder))
                _lock(folder, stack)
                break
        yield folder


@contextmanager
def old_folder(folder: Path) -> Iterator[Path]:
    """Lock the folder of a resumed run within the block."""
    with ExitStack() as stack:
        if is_first_process():
            with refuse_unwritable(folder):
                _lock(folder, stack)
        yield folder


def _lock(folder: Path, stack: ExitStack) -> None:
    """Lock a folder that can be written, and remove the unfinished files of a killed process."""
    with tempfile.TemporaryFile(dir=folder):
        if not stack.enter_context(locked(folder)):
            _note_missing_locks(folder)
        remove_unfinished(folder)


@cache
def _note_missing_locks(folder: Path) -> None:
    print_line(f"{folder} cannot be locked on this system: a second training there would not be refused")


def _is_unused(folder: Path) -> bool:
    """Whether nobody trains in a folder, and a run has left nothing but its config: the next run takes it."""
    with suppress(OSError), locked(folder) as works:
        return works and all(file.name == "config.yaml" or file.suffix == UNFINISHED for file in folder.iterdir())
    return False


@contextmanager
def refuse_unwritable(folder: Path) -> Iterator[None]:
    """Report a folder that is locked, or a write that fails, before training as a ConfigError."""
    try:
        yield
    except BlockingIOError:
        raise ConfigError(
            f"--resume: another process is training in {folder}: wait until it has ended, or stop it first"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"run.folder: {str(folder)!r} cannot be written ({reason})") from None


def is_first_process() -> bool:
    """Whether this process writes files and prints; works before there is a Trainer."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def print_line(line: str, end: str = "\n", to_errors: bool = False) -> None:
    """Print and flush. A line that cannot be written is dropped instead of ending the run."""
    with suppress(OSError):
        print(line, end=end, flush=True, file=sys.stderr if to_errors else sys.stdout)


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
