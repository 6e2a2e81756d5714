"""The folder of a run, runs/NAME/vN: created, and written to."""

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.atomic_files import written_whole
from minitx.config.errors import ConfigError, expanded
from minitx.config.schema import Config


def run_root(config: Config) -> Path:
    """The folder of all versions of a run; a ConfigError if run.name is not a folder name."""
    if not re.fullmatch(r"[\w.+-]+", config.run.name) or config.run.name in (".", ".."):
        raise ConfigError(f"run.name must be a folder name (letters, digits, _ . + -), got {config.run.name!r}")
    return expanded(config.run.folder, "run.folder") / config.run.name


def new_folder(config: Config, take: Callable[[Path], None] = Path.mkdir) -> Path:
    """Create the folder of a new version; a ConfigError if it cannot be written. `take` creates the newest version or a
    later one, or raises a FileExistsError or BlockingIOError for one in use."""
    root = run_root(config)
    with refuse_unwritable(root):
        newest = max((int(version.name[1:]) for version in checkpoint.versions(root)), default=0)
        if not is_first_process():
            return root / f"v{newest}"  # the first process broadcasts its own through Lightning
        root.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(newest):
        folder = root / f"v{number}"
        with refuse_unwritable(folder), suppress(FileExistsError, BlockingIOError):
            take(folder)
            break
    return folder


@contextmanager
def refuse_unwritable(folder: Path) -> Iterator[None]:
    """Report a write that fails before training as a ConfigError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        parts = (folder, *folder.parents) if isinstance(error, FileExistsError | FileNotFoundError) else ()
        broken = [part for part in parts if part.is_symlink() and not part.exists()]
        reason = f"{broken[0]} is a link to a missing folder" if broken else getattr(error, "strerror", error)
        raise ConfigError(f"run.folder: {str(folder)!r} cannot be written ({reason})") from None


def is_first_process() -> bool:
    """Whether this process writes files and prints; works before there is a Trainer."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", os.environ.get("SLURM_PROCID", "0"))) == "0"


def print_line(line: str, end: str = "\n", to_errors: bool = False) -> None:
    """Print and flush. A line that cannot be written is dropped and the run continues; `unwritten` has the error."""
    file = sys.stderr if to_errors else sys.stdout
    encoding = getattr(file, "encoding", None) or "utf-8"  # maybe without some characters: a file on Windows
    try:
        print(line.encode(encoding, "backslashreplace").decode(encoding), end=end, flush=True, file=file)
    except OSError as error:
        unwritten[:] = unwritten if to_errors else [error]  # the last one alone: there may be thousands


unwritten: list[OSError] = []


class RunFiles:
    """Files in a run's folder. A failed write ends the run; training/resilience/disk.py has a tolerant subclass."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = folder / "last.ckpt"
        self.saved: int | None = None  # step of last.ckpt, once this process has written it or resumed from it
        self.failures: dict[str, str] = {}  # reason by file, for files whose latest write failed

    def write(self, name: str, contents: bytes) -> None:
        """Write a small file atomically."""
        with written_whole(self.folder / name) as file:
            file.write(contents)

    def check_saved(self) -> None:
        """Check that the end of training was saved."""

    def writing(self, name: str, fallback: str = "") -> AbstractContextManager[None]:
        """Return a context for any other write, by default of a checkpoint; `fallback` describes a failure's effect."""
        return nullcontext()
