"""The event file of a run, which survives that its disk is full for a while or its folder gone."""

from __future__ import annotations

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

MOST = 64 * 2**20
"""Bytes that wait for a disk to have room again; what comes then is lost."""
ENOUGH = 2**20
"""Bytes that are written without waiting for a flush."""


class EventFile:
    """What a SummaryWriter writes to, in place of torch's FileWriter.

    TensorBoard's own writer has a thread that an error ends for good: it prints a traceback, and each later point of a
    curve raises. Here what cannot be written waits, and is tried again with the next flush.

    Args:
        folder: of the file, which is named as TensorBoard expects it.
        writing: makes a context to write in, which may swallow an OSError.
    """

    def __init__(self, folder: str | Path, writing: Callable[[], AbstractContextManager[None]]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._writing = writing
        self._waiting: deque[bytes] = deque()
        self._size = self._written = 0  # bytes that wait; bytes of the first of them that are in the file
        self.flush()

    def get_logdir(self) -> str:
        """The folder."""
        return str(self.folder)

    def add_summary(self, summary: Summary, global_step: int | None = None, walltime: float | None = None) -> None:
        """Add values at a step."""
        self.add_event(Event(summary=summary), global_step, walltime)

    def add_event(self, event: Any, step: int | None = None, walltime: float | None = None) -> None:
        """Add an event, and write when there is enough to write."""
        event.wall_time = time.time() if walltime is None else walltime
        if step is not None:
            event.step = int(step)
        record = _record(event)
        if self._size + len(record) > MOST:
            return
        self._waiting.append(record)
        self._size += len(record)
        if ENOUGH <= self._size < 2 * ENOUGH:  # beyond it the disk is in trouble, and not tried with every event
            self.flush()

    def flush(self) -> None:
        """Write what waits, as far as that is possible."""
        with self._writing():
            if not self.path.exists():
                self._begin()
            with self.path.open("ab", buffering=0) as file:
                while self._waiting:
                    self._written += file.write(self._waiting[0][self._written :]) or 0
                    if self._written == len(self._waiting[0]):
                        self._size -= self._written
                        self._written = 0
                        self._waiting.popleft()

    def _begin(self) -> None:
        """Make the file, with the event that says what it is; also again, when it was removed."""
        if self._written:  # half of this record has gone with the file
            self._size -= len(self._waiting.popleft())
            self._written = 0
        with self.path.open("xb", buffering=0) as file:
            file.write(_record(Event(wall_time=time.time(), file_version="brain.Event:2")))

    close = flush


def _record(event: Event) -> bytes:
    """An event as it stands in the file: its length and its bytes, each with a checksum."""
    bytes_ = io.BytesIO()
    RecordWriter(bytes_).write(event.SerializeToString())
    return bytes_.getvalue()
