"""Lock the folder of a run against a second training process, and remove the unfinished files of a killed process."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from minitx.checkpoints.atomic_files import UNFINISHED
from minitx.checkpoints.locks import locked, remove_unfinished
from minitx.config.errors import ConfigError
from minitx.config.schema import Config
from minitx.training.folder import is_first_process, new_folder, print_line, refuse_unwritable


@contextmanager
def locked_folder(config: Config, old: Path | None) -> Iterator[Path]:
    """Lock the folder of a resumed run within the block, or create that of a new run.

    A new run may take the folder of the newest version if nothing was saved in it.

    Raises:
        ConfigError: another process trains in the folder of the resumed run; or the folder cannot be written.
    """
    with ExitStack() as stack:

        def take(folder: Path) -> None:
            folder.mkdir(exist_ok=folder == old or _is_unused(folder))
            with tempfile.TemporaryFile(dir=folder):  # fails if it cannot be written
                if not stack.enter_context(locked(folder)):
                    print_line(f"{folder} cannot be locked on this system: a second run there would not be refused")
                remove_unfinished(folder)

        if old is None:
            yield new_folder(config, take)
            return
        free = False
        with refuse_unwritable(old), suppress(BlockingIOError):
            if is_first_process():
                take(old)
            free = True
        if not free:
            busy = f"another process is training in {old}: wait until it has ended, or stop it first"
            raise ConfigError(f"--resume: {busy}")
        yield old


def _is_unused(folder: Path) -> bool:
    """Whether a folder is not locked and holds a run's config at most, so that another run may use it.

    A folder with more is not even locked to test it: a process that resumes its run would be refused meanwhile.
    """

    def holds_config_at_most() -> bool:
        return all(file.name == "config.yaml" or file.suffix == UNFINISHED for file in folder.iterdir())

    with suppress(OSError):
        if holds_config_at_most():
            with locked(folder) as lockable:
                return lockable and holds_config_at_most()  # a run may have ended between the two
    return False
