"""The event file of a run, robust to a full disk and to the removal of its folder."""

import io
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

MAX_WAITING_BYTES = 64 * 2**20
"""Bytes buffered while the disk is full; later events are dropped."""
FLUSH_BYTES = 2**20
"""Buffered bytes that cause a flush."""


class EventFile:
    """Replacement for torch's FileWriter in a SummaryWriter.

    An error ends the thread of TensorBoard's own writer for good: it prints a traceback, and each later scalar raises.
    This class buffers events that cannot be written and retries with the next flush.

    Args:
        folder: of the file.
        writing: makes the context to write in, which may suppress an OSError.
    """

    def __init__(self, folder: str | Path, writing: Callable[[], AbstractContextManager[None]]) -> None:
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self.path = Path(folder) / name
        self._writing = writing
        self._waiting: deque[bytes] = deque()
        self._size = self._written = 0  # bytes that wait; bytes of the first record that are in the file
        self.flush()

    def get_logdir(self) -> str:
        """The folder."""
        return str(self.path.parent)

    def add_summary(self, summary: Summary, global_step: int | None = None, walltime: float | None = None) -> None:
        """Add values at a step."""
        self.add_event(Event(summary=summary), global_step, walltime)

    def add_event(self, event: Any, step: int | None = None, walltime: float | None = None) -> None:
        """Add an event, and flush when FLUSH_BYTES wait."""
        event.wall_time = time.time() if walltime is None else walltime
        if step is not None:
            event.step = int(step)
        record = _record(event)
        if self._size + len(record) > MAX_WAITING_BYTES:
            return
        self._waiting.append(record)
        self._size += len(record)
        if FLUSH_BYTES <= self._size < 2 * FLUSH_BYTES:  # more wait only on a full disk: no retry with every event
            self.flush()

    def flush(self) -> None:
        """Write the waiting records, as far as possible."""
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
        """Create the file with its version record, also after it was removed."""
        if self._written:  # the first half of this record was removed with the file
            self._drop_first()
        with self.path.open("xb", buffering=0) as file:
            file.write(_record(Event(wall_time=time.time(), file_version="brain.Event:2")))

    def _drop_first(self) -> None:
        self._size -= len(self._waiting.popleft())
        self._written = 0


def _record(event: Event) -> bytes:
    """An event in the format of the file: length and bytes, each with a checksum."""
    record = io.BytesIO()
    RecordWriter(record).write(event.SerializeToString())
    return record.getvalue()
