"""A run's folder that can fail under it: full, removed, read-only. Training goes on, and what failed is tried again."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minitx.checkpoints.atomic_files import written_whole
from minitx.config.errors import RunFailed


def say(line: str, end: str = "\n", to_errors: bool = False) -> None:
    """Print at once; where standard output itself goes to a full disk, the line is lost and the run is not."""
    try:
        print(line, end=end, flush=True, file=sys.stderr if to_errors else sys.stdout)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


class Disk:
    """Writes into a run's folder, and remembers what could not be written: each trouble is told once.

    Args:
        folder: the run's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = folder / "last.ckpt"
        self.saved: int | None = None  # the step of last.ckpt, once this run has written or read it
        self.troubles: dict[str, str] = {}  # what could not be written the last time, and why
        self._kept: dict[str, bytes] = {}

    def keep(self, name: str, contents: bytes) -> None:
        """Write a file that is to be there again if the folder has to be made again.

        Raises:
            ValueError: the folder cannot be written, before any work.
        """
        self._kept[name] = contents
        try:
            self._write(name)
        except OSError as error:
            raise ValueError(f"run.folder: {self.folder} cannot be written ({error.strerror})") from None

    def check(self) -> None:
        """Training has ended: is it saved?

        Raises:
            RunFailed: no, the last save has failed.
        """
        if reason := self.troubles.get(self.last.name):
            kept = "there is no last.ckpt" if self.saved is None else f"last.ckpt is of step {self.saved:,}"
            raise RunFailed(
                f"{self.folder}: the end of training could not be saved ({reason}); {kept}: once the folder can be "
                f"written, {'start again' if self.saved is None else 'go on from there with --resume'}"
            )

    def keep_result(self, name: str, contents: bytes) -> None:
        """Write the last file of a run.

        Raises:
            RunFailed: it cannot be written.
        """
        self._kept[name] = contents
        try:
            self._write(name)
        except OSError as error:
            raise RunFailed(
                f"{self.folder}: {name} cannot be written ({error.strerror}); the run is trained and saved: --resume "
                "evaluates it again"
            ) from None

    def _write(self, name: str) -> None:
        with written_whole(self.folder / name) as file:
            file.write(self._kept[name])

    @contextmanager
    def writing(self, what: str, otherwise: str) -> Iterator[None]:
        """A block that writes something into the folder; an OSError in it is told, the first time, and swallowed.

        Args:
            what: is written.
            otherwise: what is there instead, and what will be done about it.
        """
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                say(f"{self.folder} was removed while the run went on: it is made again, without what it held")
                for name in self._kept:
                    self._write(name)
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if what not in self.troubles:
                say(f"{self.folder}: {what} cannot be written ({reason}): {otherwise}")
            self.troubles[what] = reason
        else:
            if self.troubles.pop(what, None):
                say(f"{self.folder}: {what} is written again")
