"""Progress of long work on stderr: a tqdm bar on a terminal, else a line every ten seconds, nothing for short work."""

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from tqdm import tqdm
from tqdm.utils import CallbackIOWrapper

from minitx.checkpoints.atomic_files import written_whole

T = TypeVar("T")

DELAY_SECONDS = 1.0  # work that takes less shows nothing
BAR_SECONDS, LINE_SECONDS = 0.2, 10.0  # seconds between updates, on a terminal and elsewhere


class _Bar(tqdm):
    monitor_interval = 0  # no thread: training may fork


class _Lines(io.StringIO):
    """A file for tqdm that prints each update as a line of its own, without carriage returns and blanks.

    A line that cannot be printed is dropped: callers would report the error as one of their own files.
    """

    def write(self, text: str) -> int:
        if text.strip():
            with suppress(OSError):
                print(text.strip(), file=sys.stderr)
        return len(text)


def progress(
    parts: Iterable[T], label: str, size: Callable[[T], int] = lambda _: 1, total: int | None = None, unit: str = ""
) -> Iterator[T]:
    """Iterate over parts of long work and show how much of it is done: "encoding: 312MB of 1.02GB".

    `size` is that of one part in units ("B" for bytes), `total` that of all parts, if it is known.
    """
    with progress_bar(label, total, unit) as bar:
        for part in parts:
            yield part
            bar.update(size(part))


@contextmanager
def written(path: str | Path, total: int) -> Iterator[IO[bytes]]:
    """A file that is written atomically, with progress over its bytes: about `total`."""
    with written_whole(path) as file, progress_bar(f"writing {Path(path).name}", total, "B") as bar:
        yield CallbackIOWrapper(lambda size: bar.update(min(size, total - bar.n)), file, "write")


def progress_bar(label: str, total: int | None, unit: str) -> _Bar:
    """A bar for work that is no iteration; its `update` takes the number of units done since the last."""
    if sys.stderr.isatty():
        options: dict[str, Any] = {"mininterval": BAR_SECONDS}
    else:
        layout = f"{{desc}}: {{n_fmt}}{unit}"
        if total is not None:
            layout = f"{{desc}}: {{n_fmt}}{unit if unit == 'B' else ''} of {{total_fmt}}{unit}, {{remaining}} left"
        options = {"mininterval": LINE_SECONDS, "file": _Lines(), "bar_format": layout}
    options |= {"total": total, "desc": label, "unit": unit, "unit_scale": unit == "B"}
    bar = _Bar(delay=DELAY_SECONDS, leave=False, miniters=1, smoothing=0, **options)
    if bar.disable:  # by TQDM_DISABLE
        return bar
    if bar.ncols in (0, -1):  # a terminal that does not tell its size, on which tqdm would show nothing
        bar.ncols, bar.nrows = 80, 24
    bar.last_print_t -= options["mininterval"]  # the first update comes after the delay
    return bar
