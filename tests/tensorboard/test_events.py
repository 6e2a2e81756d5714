"""The event file on a disk with free space; on a full one: training/resilience/test_disk.py."""

import os
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from minitx.tensorboard import events
from minitx.tensorboard.writer import add_maps


@pytest.mark.parametrize("size", [1, 30, 700, 3000])
def test_events_of_every_size_are_written_before_many_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(events, "FLUSH_BYTES", 200)
    monkeypatch.setattr(events, "MAX_WAITING_BYTES", 2000)
    file = events.EventFile(tmp_path)
    for step in range(30):
        add_maps(file, "cross/x", [bytes(size)], step)
        assert file._size <= 200 + 100
    file.close()
    assert [event.step for event in EventFileLoader(str(file.path)).Load() if event.summary.value] == [*range(30)]


def test_time_goes_on_where_the_clock_was_set_back(tmp_path: Path) -> None:
    """During an earlier run, whose last event is then later than the name of its file says."""
    first = events.EventFile(tmp_path)
    add_maps(first, "cross/x", [b""], 0)
    first.close()
    later = time.time() + 1000.0
    os.utime(first.path, (later, later))
    second = events.EventFile(tmp_path)
    add_maps(second, "cross/x", [b""], 1)
    second.close()
    assert all(event.wall_time >= later for event in EventFileLoader(str(second.path)).Load())
