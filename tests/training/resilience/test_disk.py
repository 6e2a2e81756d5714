"""A disk that is full, a folder that is gone or read-only: reported once, training continues, nothing saved is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

import minitx
from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.atomic_files import written_whole
from minitx.cli.main import main
from minitx.config.errors import RunFailed
from minitx.tensorboard.events import EventFile
from minitx.training import api
from minitx.training.api import train_config as train
from minitx.training.folder import print_line
from minitx.training.module import TransformerModule
from minitx.training.resilience.disk import TolerantFiles
from tests.training.interrupting import events as read_events
from tests.training.interrupting import state

STEPS = {"max_steps": 8, "val_every_n_steps": 4, "save_every_n_steps": 2}


def at(patch: pytest.MonkeyPatch, acts: dict[int, Callable[[], object]]) -> None:
    """Do something at the beginning of these steps."""
    original = TransformerModule.on_train_batch_start

    def on_train_batch_start(self: TransformerModule, batch: Any, index: int) -> None:
        if self.trainer.global_step in acts:
            acts[self.trainer.global_step]()
        original(self, batch, index)

    patch.setattr(TransformerModule, "on_train_batch_start", on_train_batch_start)


class FullDisk:
    """Refuses to write checkpoints and such whole files, and events, in the middle of them."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
        self.full, self.number = False, number
        fsync, opened = os.fsync, Path.open
        made = tempfile.mkstemp

        def checked(function: Any) -> Any:
            def call(*words: Any, **more: Any) -> Any:
                if self.full and (function is not opened or words[1:2] == ("ab",)):
                    raise OSError(self.number, os.strerror(self.number))
                return function(*words, **more)

            return call

        patch.setattr(os, "fsync", checked(fsync))
        patch.setattr(Path, "open", checked(opened))
        if number == errno.EROFS:
            patch.setattr(tempfile, "mkstemp", checked(made))

    def fill(self) -> None:
        self.full = True

    def free(self) -> None:
        self.full = False


def saved(folder: Path, name: str = "last") -> int:
    """The step of a checkpoint."""
    return state(folder, name)["global_step"]


def logged(folder: Path) -> list[int]:
    """The steps of the training loss."""
    return [event.step for event in read_events(folder).Scalars("training/loss")]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_is_full_for_a_while(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    disk, folder = FullDisk(monkeypatch, number), tmp_path / "runs/small/v0"
    found: list[tuple[int, int]] = []
    acts = {3: disk.fill, 7: lambda: (found.append((saved(folder), saved(folder, "last"))), disk.free())}
    at(monkeypatch, acts)
    results = train(small(trainer=STEPS, log={"every_n_steps": 1}))
    out = capsys.readouterr().out
    reason = os.strerror(number)
    assert found == [(2, 2)], "what was saved before is untouched"
    kept = "the one of step 2 is kept, training continues, and the next save tries again"
    assert out.count(f"{folder}: last.ckpt cannot be written ({reason}): {kept}") == 1
    assert out.count(f"best.ckpt cannot be written ({reason})") == 1
    assert out.count(f"TensorBoard's event file cannot be written ({reason}): training continues, and the curves") == 1
    for what in ("last.ckpt", "best.ckpt", "TensorBoard's event file"):
        assert out.count(f"{folder}: {what} is written again") == 1
    assert results["steps"] == saved(folder) == saved(folder, "best") == 8
    assert not [file for file in folder.iterdir() if file.name.startswith(".")], "no leftovers"
    assert logged(folder) == list(range(1, 9)), "no point is lost"


def test_a_best_that_could_not_be_written_is_not_the_best(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second validation is the better one, and fails to be saved; the third is between the two."""
    disk, order = FullDisk(monkeypatch), iter([0.1, 0.9, 0.5])
    at(monkeypatch, {3: disk.fill, 5: disk.free})
    original = TransformerModule.log

    def log(self: TransformerModule, name: str, value: Any, **more: Any) -> None:
        original(self, name, next(order) if name == "validation/selection" else value, **more)

    monkeypatch.setattr(TransformerModule, "log", log)
    train(small(trainer={**STEPS, "max_steps": 6, "val_every_n_steps": 2}))
    assert saved(tmp_path / "runs/small/v0", "best") == 6


def test_a_run_whose_last_save_fails_fails(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk, config = FullDisk(monkeypatch), small(trainer=STEPS)
    with monkeypatch.context() as patch:
        at(patch, {5: disk.fill})
        with pytest.raises(RunFailed, match=r"end of training could not be saved \(No space.*last.ckpt is of step 4"):
            train(config)
        assert "the one of step 4 is kept" in capsys.readouterr().out
        disk.free()
        with pytest.raises(RunFailed, match=r"last.ckpt is of step 4"):
            train(config, resume=True)
    disk.free()
    folder = tmp_path / "runs/small/v0"
    assert saved(folder) == 4
    assert minitx.load(folder, device="cpu")
    assert train(config, resume=True)["steps"] == 8
    assert saved(folder) == 8


def test_results_that_cannot_be_written_are_printed(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk, config = FullDisk(monkeypatch), small(trainer=STEPS)
    original = api.evaluation_report
    with monkeypatch.context() as patch:
        patch.setattr(api, "evaluation_report", lambda *words: (disk.fill(), original(*words))[1])
        with pytest.raises(RunFailed, match=r"results.json cannot be written \(No space left on device\); the run is"):
            train(config)
    assert "free-running" in capsys.readouterr().out
    disk.free()
    assert train(config, resume=True)["steps"] == 8
    assert (tmp_path / "runs/small/v0/results.json").exists()


def test_a_removed_folder_is_created_again(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs/small/v0"
    at(monkeypatch, {5: lambda: shutil.rmtree(tmp_path / "runs")})
    train(small(trainer=STEPS, log={"every_n_steps": 1}))
    assert capsys.readouterr().out.count(f"{folder} was removed during the run: it is created again") == 1
    assert saved(folder) == 8
    assert saved(folder, "best") == 8, "a removed file is not the best"
    assert yaml.safe_load((folder / "config.yaml").read_text())["run"]["name"] == "small"
    assert json.loads((folder / "results.json").read_text())["steps"] == 8
    assert logged(folder)[-2:] == [7, 8]


def test_a_folder_that_is_full_from_the_beginning_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FullDisk(monkeypatch).fill()
    with pytest.raises(SystemExit) as stop:
        main(["train", "--data.name=reverse", f"--run.folder={tmp_path}", "--trainer.accelerator=cpu"])
    assert stop.value.code == 2
    assert "cannot be written (No space left on device)" in capsys.readouterr().err


def test_an_event_file_keeps_whole_records(tmp_path: Path) -> None:
    """A write that fails within a record is resumed there; when the file is gone, the written half is dropped."""
    disk = TolerantFiles(tmp_path)
    events = EventFile(tmp_path, lambda: disk.writing("events", "they wait"))

    def add(step: int) -> None:
        events.add_summary(Summary(value=[Summary.Value(tag="curve", simple_value=step)]), step)

    def steps() -> list[int]:
        return [event.step for event in read_events(tmp_path).Scalars("curve")]

    original = Path.open

    class Short:
        """Takes seven bytes, and then no more."""

        def __init__(self, file: Any) -> None:
            self.file, self.left = file, 7

        def __enter__(self) -> Short:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def write(self, contents: bytes) -> int:
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.left = 0
            return self.file.write(contents[:7])

    for removed in (False, True):
        add(1)
        add(2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "open", lambda self, *mode, **more: Short(original(self, *mode, **more)))
            events.flush()
        assert "events" in disk.failures
        if removed:
            events.path.unlink()
        events.flush()
        assert steps() == ([2] if removed else [1, 2])
        assert not disk.failures


def test_events_that_cannot_be_written_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitx.tensorboard.events.MAX_WAITING_BYTES", 1000)
    disk, full = TolerantFiles(tmp_path), FullDisk(monkeypatch)
    events = EventFile(tmp_path, lambda: disk.writing("events", "they wait"))
    full.fill()
    for step in range(100):
        events.add_event(Event(), step)
        events.flush()
    assert 900 < events._size <= 1000
    full.free()
    events.flush()
    assert events._size == 0


def test_a_checkpoint_that_does_not_fit_is_an_oserror_and_leaves_nothing(tmp_path: Path) -> None:
    """Torch wraps the error."""

    class Full:
        def write(self, contents: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def flush(self) -> None:
            return None

    with pytest.MonkeyPatch.context() as patch:
        save = torch.save
        patch.setattr(torch, "save", lambda contents, file: save(contents, Full()))
        with pytest.raises(OSError, match="No space left"):
            checkpoint.write({"weights": torch.zeros(1000)}, tmp_path / "last.ckpt")
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_a_full_disk_refuses_is_dropped_and_other_errors_are_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(number: int) -> Callable[..., None]:
        def write(*_words: Any, **_more: Any) -> None:
            raise OSError(number, os.strerror(number))

        return write

    monkeypatch.setattr("builtins.print", fails(errno.ENOSPC))
    print_line("lost")
    monkeypatch.setattr("builtins.print", fails(errno.EPIPE))
    with pytest.raises(BrokenPipeError):
        print_line("nobody listens")


def test_a_failed_write_keeps_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("before")
    FullDisk(monkeypatch).fill()
    with pytest.raises(OSError, match="No space left"), written_whole(tmp_path / "file") as file:
        file.write(b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "before"
