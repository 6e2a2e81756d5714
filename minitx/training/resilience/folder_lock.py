"""The folder of a run locked against a second training, and cleaned of what a killed process left."""

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.atomic_files import UNFINISHED, remove_unfinished
from minitx.checkpoints.locks import locked
from minitx.config.errors import ConfigError
from minitx.config.schema import Config
from minitx.training.folder import is_first_process, new_folder, print_line, refuse_unwritable, run_root


@contextmanager
def locked_new_folder(config: Config) -> Iterator[Path]:
    """Create the folder of a new version, or take one that nothing was saved in; locked within the block."""
    root = run_root(config)
    if not is_first_process():
        yield new_folder(config)
        return
    newest = max((int(version.name[1:]) for version in checkpoint.versions(root)), default=0)
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
def locked_old_folder(folder: Path) -> Iterator[Path]:
    """Lock the folder of a resumed run within the block; a ConfigError if another process trains in it."""
    with ExitStack() as stack:
        if is_first_process():
            is_locked = False
            with refuse_unwritable(folder), suppress(BlockingIOError):
                _lock(folder, stack)
                is_locked = True
            if not is_locked:
                raise ConfigError(
                    f"--resume: another process is training in {folder}: wait until it has ended, or stop it first"
                )
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
    """Whether a folder is not locked and holds a run's config at most, so that another run may use it."""
    with suppress(OSError), locked(folder) as works:
        return works and all(file.name == "config.yaml" or file.suffix == UNFINISHED for file in folder.iterdir())
    return False
