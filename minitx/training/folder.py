"""Where a run lands: runs/NAME/vN, and which checkpoint a resumed run goes on from."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from minitx import checkpoint
from minitx.config import Config


def run_folder(config: Config, resume: bool) -> tuple[Path, Path | None]:
    """The run's folder, made now; and the checkpoint to go on from.

    Raises:
        ValueError: a folder that cannot be written, or nothing to resume.
    """
    if not re.fullmatch(r"[\w.+-]+", config.run.name) or config.run.name in (".", ".."):
        raise ValueError(f"run.name must be a plain folder name, got {config.run.name!r}")
    root = Path(config.run.folder).expanduser() / config.run.name
    if resume:
        return _resumable(config, root)
    existing = checkpoint.versions(root)
    number = int(existing[-1].name[1:]) + 1 if existing else 0
    folder = root / f"v{number}"
    if int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))):
        return folder, None  # the first process makes it, and tells Lightning in the others
    try:
        folder.mkdir(parents=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"run.folder: {str(folder)!r} cannot be written ({reason})") from None
    return folder, None


def _resumable(config: Config, root: Path) -> tuple[Path, Path]:
    """The newest version that has a last.ckpt, if it is of the same experiment."""
    try:
        file = checkpoint.find(root, "last")
    except ValueError:
        raise ValueError(f"--resume: there is no {root}/vN/last.ckpt to go on from") from None
    before, now = checkpoint.read(file)["minitx"]["config"], config.to_dict()
    for section in ("model", "data"):
        for key in sorted({*before[section], *now[section]}):
            old, new = before[section].get(key), now[section].get(key)
            if old != new:
                raise ValueError(
                    f"--resume: {file.parent} was trained with {section}.{key} {old!r}, not {new!r}; start a new run"
                )
    return file.parent, file
