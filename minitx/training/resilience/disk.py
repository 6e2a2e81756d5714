"""A run's folder that can fail under it: full, removed, read-only. Training goes on, and what failed is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minitx.config.errors import RunFailed
from minitx.training.folder import RunFiles, say


class Disk(RunFiles):
    """Writes into a run's folder, and remembers what could not be written: each trouble is told once.

    Args:
        folder: the run's.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._kept: dict[str, bytes] = {}

    def keep(self, name: str, contents: bytes) -> None:
        """Write a file that is to be there again if the folder has to be made again.

        Raises:
            ConfigError: the folder cannot be written, before any work.
        """
        self._kept[name] = contents
        super().keep(name, contents)

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
            self._write(name, contents)
        except OSError as error:
            raise RunFailed(
                f"{self.folder}: {name} cannot be written ({error.strerror}); the run is trained and saved: --resume "
                "evaluates it again"
            ) from None

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
                for name, contents in self._kept.items():
                    self._write(name, contents)
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if what not in self.troubles:
                say(f"{self.folder}: {what} cannot be written ({reason}): {otherwise}")
            self.troubles[what] = reason
        else:
            if self.troubles.pop(what, None):
                say(f"{self.folder}: {what} is written again")
