"""A run's folder that is full, removed or read-only: training continues, and the next write tries again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minitx.config.errors import RunFailed
from minitx.training.folder import RunFiles, print_line


class TolerantFiles(RunFiles):
    """Files in a run's folder, whose failed writes are reported once and do not end the run.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._contents: dict[str, bytes] = {}  # to write again into a folder that was removed

    def write_first(self, name: str, contents: bytes) -> None:
        """Write a file before training.

        Raises:
            ConfigError: the folder cannot be written.
        """
        self._contents[name] = contents
        super().write_first(name, contents)

    def check_saved(self) -> None:
        """Check that the end of training was saved.

        Raises:
            RunFailed: the last save has failed.
        """
        if reason := self.failures.get(self.last.name):
            kept = "there is no last.ckpt" if self.saved is None else f"last.ckpt is of step {self.saved:,}"
            raise RunFailed(
                f"{self.folder}: the end of training could not be saved ({reason}); {kept}: once the folder can be "
                f"written, {'start again' if self.saved is None else 'resume from it with --resume'}"
            )

    def write_results(self, contents: bytes) -> None:
        """Write results.json.

        Raises:
            RunFailed: it cannot be written.
        """
        self._contents["results.json"] = contents
        try:
            super().write_results(contents)
        except OSError as error:
            raise RunFailed(
                f"{self.folder}: results.json cannot be written ({error.strerror}); the run is trained and saved: "
                "--resume evaluates it again"
            ) from None

    @contextmanager
    def writing(self, name: str, fallback: str) -> Iterator[None]:
        """A context for a write into the folder, whose first OSError is reported and suppressed.

        Args:
            name: of the file, for messages.
            fallback: what there is instead after a failure, and whether it is retried.
        """
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                print_line(f"{self.folder} was removed during the run: it is created again, without its old files")
                for file, contents in self._contents.items():
                    self._write(file, contents)
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if name not in self.failures:
                print_line(f"{self.folder}: {name} cannot be written ({reason}): {fallback}")
            self.failures[name] = reason
        else:
            if self.failures.pop(name, None):
                print_line(f"{self.folder}: {name} is written again")
