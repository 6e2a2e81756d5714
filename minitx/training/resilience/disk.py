"""A run's folder that is full, removed or read-only: training continues, and the next write tries again."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minitx.config.errors import RunFailed
from minitx.training.folder import RunFiles, print_line
from minitx.training.start import alternative


class TolerantFiles(RunFiles):
    """Files in a run's folder, whose failed writes are reported once and do not end the run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._contents: dict[str, bytes] = {}  # of small files, to write again into a folder that was removed
        self._inode = folder.stat().st_ino if folder.exists() else 0  # of processes that write nothing

    def write(self, name: str, contents: bytes) -> None:
        self._contents[name] = contents
        super().write(name, contents)

    def check_saved(self) -> None:
        """Check that the end of training was saved.

        Raises:
            RunFailed: the last save has failed.
        """
        if reason := self.failures.get(self.last.name):
            kept = f"there is no last.ckpt; {alternative(self.last)}"
            if self.last.exists():
                kept = f"last.ckpt is of step {self.saved:,}: once the folder can be written, resume with --resume"
            raise RunFailed(f"{self.folder}: the end of training could not be saved ({reason}); {kept}")

    @contextmanager
    def writing(self, name: str, fallback: str = "") -> Iterator[None]:
        """Report the first OSError of a file, and suppress all.

        Raises:
            RunFailed: the folder was moved, and another run is there now.
        """
        kept = f"the one of step {self.saved:,} is kept" if self.saved is not None else "there is none yet"
        if name != self.last.name:
            kept = "the previous one, if there is one, is kept"
        fallback = fallback or f"{kept}, training continues, and the next save tries again"
        if name.startswith("step_"):  # the next save has another name
            fallback = "training continues without it"
        with suppress(OSError):  # of a missing folder or config, which are written again
            new, config = self.folder.stat().st_ino != self._inode, self.folder / "config.yaml"
            if new and config.read_bytes() != self._contents.get("config.yaml"):
                back = "to resume, move it back under the number of a new version"
                raise RunFailed(f"{self.folder} was moved, and another run is there now: {back}")
        removed = not self.folder.is_dir()
        try:
            with suppress(OSError):  # the write in the block raises it too
                for file, contents in self._contents.items():
                    if not (self.folder / file).exists():
                        super().write(file, contents)
                if removed:
                    print_line(f"{self.folder} was removed during the run: it is created again, without its old files")
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if name not in self.failures:
                print_line(f"{self.folder}: {name} cannot be written ({reason}): {fallback}")
            self.failures[name] = reason
        else:
            if self.failures.pop(name, None):
                print_line(f"{self.folder}: {name} is written again")
