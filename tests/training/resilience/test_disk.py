"""A disk that is full, a folder that is gone or read-only: reported once, training continues, nothing saved is lost."""

import errno
import io
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary

from minitx.config.errors import ConfigError, RunFailed
from minitx.tensorboard.events import EventFile
from minitx.training import api
from minitx.training.api import train_config as train
from minitx.training.resilience.disk import TolerantFiles
from tests.training.interrupting import acting, events, scalars, state

STEPS = {"max_steps": 8, "val_every_n_steps": 4, "save_every_n_steps": 2}


class FullDisk:
    """Refuses to sync files and to append events; a read-only one refuses to create files, too."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
        self.full = False
        modes = {"ab", "xb"} if number == errno.EROFS else {"ab"}
        fsync, opened = os.fsync, Path.open

        def refuse(condition: bool) -> None:
            if self.full and condition:
                raise OSError(number, os.strerror(number))

        patch.setattr(os, "fsync", lambda file: refuse(True) or fsync(file))
        patch.setattr(Path, "open", lambda path, mode="r", **how: refuse(mode in modes) or opened(path, mode, **how))

    def fill(self) -> None:
        self.full = True

    def free(self) -> None:
        self.full = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def saved(folder: Path, name: str = "last") -> int:
    return state(folder, name)["global_step"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_is_full_for_a_while(small: Any, folder: Path, monkeypatch: Any, capsys: Any, number: int) -> None:
    disk = FullDisk(monkeypatch, number)
    found: list[int] = []
    with acting({3: disk.fill, 7: lambda: (found.append(saved(folder)), disk.free())}):
        results = train(small(trainer={**STEPS, "keep_every_n_steps": 5}, log={"every_n_steps": 1}))
    out, reason = capsys.readouterr().out, os.strerror(number)
    assert found == [2], "what was saved before is untouched"
    kept = "the one of step 2 is kept, training continues, and the next save tries again"
    assert out.count(f"{folder}: last.ckpt cannot be written ({reason}): {kept}") == 1
    assert out.count(f"best.ckpt cannot be written ({reason})") == 1
    assert out.count(f"step_00000005.ckpt cannot be written ({reason}): training continues without it") == 1
    assert out.count(f"TensorBoard's event file cannot be written ({reason}): training continues, and the curves") == 1
    for what in ("last.ckpt", "best.ckpt", "TensorBoard's event file"):
        assert out.count(f"{folder}: {what} is written again") == 1
    assert results["steps"] == saved(folder) == saved(folder, "best") == 8
    assert not list(folder.glob(".*")), "no leftovers"
    assert [*dict(scalars(folder)["training/loss"])] == [*range(1, 9)], "no point is lost"


def test_a_best_that_was_not_written_is_not_the_best(small: Any, folder: Path, disk: Any, monkeypatch: Any) -> None:
    """The second validation is the best, and its save fails; the third is between the two."""
    order = iter([-math.inf, *(1 - loss for loss in (3e-9, 1e-9, 2e-9))])  # the first by the constructor
    selection = property(lambda module: module.score, lambda module, _: setattr(module, "score", next(order)))
    monkeypatch.setattr("minitx.training.module.TransformerModule.selection", selection, raising=False)
    with acting({3: disk.fill, 5: disk.free}):
        train(small(trainer={**STEPS, "max_steps": 6, "val_every_n_steps": 2}))
    assert saved(folder, "best") == 6


def test_a_run_whose_last_save_fails_can_be_resumed(small: Any, folder: Path, disk: FullDisk, capsys: Any) -> None:
    config = small(trainer=STEPS)
    message = r"end of training could not be saved \(No space.*last.ckpt is of step 4"
    for resume in (False, True):
        with acting({5: disk.fill}), pytest.raises(RunFailed, match=message):
            train(config, resume)
        assert "the one of step 4 is kept" in capsys.readouterr().out
        disk.free()
    assert saved(folder) == 4
    assert train(config, resume=True)["steps"] == saved(folder) == 8
    best = r"there is no last.ckpt; .* weights of the best validation: --init_from .*v0.best.ckpt"
    with acting({9: lambda: (disk.fill(), (folder / "last.ckpt").unlink())}), pytest.raises(RunFailed, match=best):
        train(small(trainer={**STEPS, "max_steps": 10}), resume=True)
    disk.free()
    with acting({1: disk.fill}), pytest.raises(RunFailed, match=r"there is no last.ckpt; .*: start a new run"):
        train(config)  # which was never saved
    with pytest.raises(ConfigError, match=r"cannot be written \(No space left on device\)"):
        train(config)  # full from the start


def test_unwritten_results_are_printed(small: Any, finished: Any, disk: Any, monkeypatch: Any, capsys: Any) -> None:
    results, original = finished() / "results.json", api.evaluation_report
    results.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(api, "evaluation_report", lambda *words: (disk.fill(), original(*words))[1])
        with pytest.raises(RunFailed, match=r"results.json cannot be written \(No space left on device\); the run is"):
            train(small(), resume=True)
    assert "free-running" in capsys.readouterr().out
    disk.free()
    monkeypatch.setattr("minitx.training.callbacks.loggers.finish", lambda *figures: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(small(), resume=True)
    assert train(small(), resume=True)["steps"] == json.loads(results.read_text())["steps"] == 6


def test_a_removed_folder_is_created_again(small: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also when that fails at first, as of a disk that is unmounted; no failure ends the run."""
    worse = {"lr": 5.0}  # than the validation before
    replaced = {3: lambda: (shutil.rmtree(folder), folder.write_text("a file")), 5: folder.unlink}
    with acting({**replaced, 6: lambda: shutil.rmtree(folder.parents[1])}):
        train(small(trainer={**STEPS, "val_every_n_steps": 2}, log={"every_n_steps": 1}, optimizer=worse))
    out = capsys.readouterr().out
    assert re.search(r"last.ckpt cannot be written \(.+\): the one of step 2 is kept", out)
    assert f"{folder}: last.ckpt is written again" in out
    assert f"{folder} was removed during the run: it is created again" in out
    assert saved(folder) == saved(folder, "best") == 8, "a removed file is not the best"
    assert yaml.safe_load((folder / "config.yaml").read_text())["run"]["name"] == "small"
    assert json.loads((folder / "results.json").read_text())["steps"] == 8
    assert [*dict(scalars(folder)["training/loss"])][-2:] == [7, 8]


def test_another_run_in_the_place_of_a_moved_folder_is_kept(small: Any, folder: Path) -> None:
    moved, other = folder.with_name("moved"), folder / "config.yaml"
    replaced = {3: lambda: (folder.rename(moved), folder.mkdir(), other.write_text("another"))}
    with acting(replaced), pytest.raises(RunFailed, match="v0 was moved, and another run is there now: to resume,"):
        train(small(trainer=STEPS))
    assert ([*folder.iterdir()], other.read_text(), saved(moved)) == ([other], "another", 2)


class Short(io.FileIO):
    """Takes seven bytes, and then no more."""

    left = 7

    def write(self, contents: Any) -> int:
        if not self.left:
            raise OSError("full")
        self.left = 0
        return super().write(contents[:7])


def test_an_event_file_keeps_whole_records(tmp_path: Path) -> None:
    """A write that fails within a record is resumed there; when the file is gone, the written half is dropped."""
    disk = TolerantFiles(tmp_path)
    file = EventFile(tmp_path, lambda: disk.writing("events", "they wait"))
    file.flush()
    assert not any(tmp_path.iterdir()), "a run that ends before its first save leaves no file"
    for removed in (False, True):
        for step in (1, 2):
            file.add_summary(Summary(value=[Summary.Value(tag="curve", simple_value=step)]), step)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "open", lambda path, mode, buffering: Short(path, mode))
            file.flush()
        assert disk.failures == {"events": "full"}
        if removed:
            file.path.unlink()
        file.flush()
        assert scalars(tmp_path)["curve"] == ([(2, 2)] if removed else [(1, 1), (2, 2)])
        assert not disk.failures


def test_events_that_cannot_be_written_are_bounded(tmp_path: Path, disk: FullDisk, monkeypatch: Any) -> None:
    monkeypatch.setattr("minitx.tensorboard.events.MAX_WAITING_BYTES", 1000)
    files = TolerantFiles(tmp_path)
    file = EventFile(tmp_path, lambda: files.writing("events", "they wait"))
    disk.fill()
    for step in range(100):
        file.add_event(Event(), step)
        file.flush()
    assert 900 < file._size <= 1000
    disk.free()
    file.flush()
    assert file._size == 0


def test_the_curves_of_a_run_whose_clock_is_set_back_stay_in_order(tmp_path: Path, monkeypatch: Any) -> None:
    """As of three processes that resume a run within a second, the last two a day earlier."""
    for begin, now in enumerate((1_700_000_000.0, 1_699_913_600.0, 1_699_913_600.0)):
        monkeypatch.setattr("minitx.tensorboard.events.time.time", lambda now=now: now)
        monkeypatch.setattr(os, "getpid", lambda begin=begin: 1000 - begin)  # whose order means nothing
        file = EventFile(tmp_path)
        file.add_event(Event(session_log=SessionLog(status=SessionLog.START)), 2 * begin)
        for step in range(2 * begin, 2 * begin + 3):  # of the step after the last save, the newest value counts
            file.add_summary(Summary(value=[Summary.Value(tag="curve", simple_value=10 * begin + step)]), step)
        file.close()
        os.utime(file.path, (now + 60, now + 60))  # of its last event
    curve = events(tmp_path).Scalars("curve")
    assert [(event.step, event.value) for event in curve] == [*enumerate((0, 1, 12, 13, 24, 25, 26))]
    times = [event.wall_time for event in curve]
    assert times == sorted(times)
    assert times[2] > 1_700_000_060, "after the last event of the first file"
