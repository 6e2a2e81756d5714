"""Where a run lands: runs/NAME/vN."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from minitx import checkpoint
from minitx.config import Config
from minitx.files import remove_unfinished


def run_root(config: Config) -> Path:
    """The folder of all versions of a run.

    Raises:
        ValueError: a name that is no folder's.
    """
    if not re.fullmatch(r"[\w.+-]+", config.run.name) or config.run.name in (".", ".."):
        raise ValueError(f"run.name must be a plain folder name, got {config.run.name!r}")
    return Path(config.run.folder).expanduser() / config.run.name


def new_folder(config: Config) -> Path:
    """The folder of a new version, made now.

    Raises:
        ValueError: a folder that cannot be written.
    """
    root = run_root(config)
    existing = checkpoint.versions(root)
    number = int(existing[-1].name[1:]) + 1 if existing else 0
    folder = root / f"v{number}"
    if not is_first_process():
        return folder  # the first process makes it, and tells Lightning in the others
    try:
        folder.mkdir(parents=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"run.folder: {str(folder)!r} cannot be written ({reason})") from None
    return folder


def old_folder(folder: Path) -> Path:
    """The folder of a run that goes on: without the unfinished files of a process that was killed.

    Raises:
        ValueError: a folder that cannot be written.
    """
    if is_first_process():
        try:
            remove_unfinished(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ValueError(f"run.folder: {folder} cannot be written ({error.strerror})") from None
    return folder


def is_first_process() -> bool:
    """Whether this is the process that writes files and prints, known before there is a Trainer."""
    return not int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))
