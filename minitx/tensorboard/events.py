"""The event file of a run, robust to a full disk and to the removal of its folder."""

import io
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Self

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

MAX_WAITING_BYTES = 64 * 2**20
"""Bytes buffered while the disk is full; later events are dropped."""
FLUSH_BYTES = 2**20
"""Bytes of new events that cause a flush."""


class EventFile:
    """Replacement for torch's FileWriter in a SummaryWriter.

    An error ends the thread of TensorBoard's own writer for good: it prints a traceback, and each later scalar raises.
    This class buffers events that cannot be written and retries with the next flush.

    Args:
        writing: returns a context manager for each write, which may suppress an OSError.
    """

    def __init__(self, folder: str | Path, writing: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        # TensorBoard reads files in the order of the seconds in their names. If the clock was set back since an
        # earlier file was written, or during the run, these times still increase.
        now = time.time()
        for file in Path(folder).glob(f"events.out.tfevents.{'[0-9]' * 10}.*"):
            with suppress(OSError):  # it may have been removed by now
                now = max(now, float(file.name.split(".")[3]) + 1.0, file.stat().st_mtime)
        self._epoch = now - time.monotonic()
        self.path = Path(folder) / f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._writing = writing
        self._waiting: deque[bytes] = deque()
        self._size = self._written = 0  # bytes that wait; bytes of the first record that are in the file
        self._new = 0  # bytes added since the last flush: on a full disk, not every event tries again

    def _get_file_writer(self) -> Self:
        """Itself: the functions of writer.py accept this class and torch's SummaryWriter, which has this method."""
        return self

    def get_logdir(self) -> str:
        """The folder."""
        return str(self.path.parent)

    def add_summary(self, summary: Summary, global_step: int | None = None, walltime: float | None = None) -> None:
        """Add values at a step."""
        self.add_event(Event(summary=summary), global_step, walltime)

    def add_event(self, event: Any, step: int | None = None, walltime: float | None = None) -> None:
        """Add an event, and flush after FLUSH_BYTES."""
        event.wall_time = self._time() if walltime is None else walltime
        if step is not None:
            event.step = int(step)
        record = _record(event)
        self._waiting.append(record)
        self._size += len(record)
        self._new += len(record)
        if self._new >= FLUSH_BYTES:
            self.flush()
        if self._size > MAX_WAITING_BYTES and len(self._waiting) > 1:  # the first one may be partly in the file
            self._size -= len(self._waiting.pop())

    def flush(self) -> None:
        """Write the waiting records, as far as possible. The first of them creates the file."""
        self._new = 0
        if not self._waiting:
            return
        with self._writing():
            if not self.path.exists():
                self._create()
            with self.path.open("ab", buffering=0) as file:
                while self._waiting:
                    self._written += file.write(self._waiting[0][self._written :]) or 0
                    if self._written == len(self._waiting[0]):
                        self._drop_first()

    close = flush

    def _create(self) -> None:
        """Create the file, also after it was removed; its version record is the first to be written."""
        self.path.touch(exist_ok=False)
        if self._written:  # the first half of this record was removed with the file
            self._drop_first()
        self._waiting.appendleft(_record(Event(wall_time=self._time(), file_version="brain.Event:2")))
        self._size += len(self._waiting[0])

    def _time(self) -> float:
        return self._epoch + time.monotonic()

    def _drop_first(self) -> None:
        self._size -= len(self._waiting.popleft())
        self._written = 0


def _record(event: Event) -> bytes:
    """An event in the format of the file: length and bytes, each with a checksum."""
    record = io.BytesIO()
    RecordWriter(record).write(event.SerializeToString())
    return record.getvalue()
