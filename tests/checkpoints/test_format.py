import os
import random
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils.serialization import config as saving

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.atomic_files import written_whole
from minitx.cli.main import main
from minitx.config.errors import ConfigError

CONFIG = {"run": {"name": "x"}, "model": {"d_model": 8}}
TOKENIZER = {"model": {"vocab": {"<pad>": 0}}}


def contents(**changes: Any) -> dict[str, Any]:
    weights = {"weight": torch.arange(12.0).reshape(3, 4)}
    return {**checkpoint.contents_of(CONFIG, TOKENIZER, weights), "global_step": 7, **changes}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.ckpt"
    checkpoint.write(contents(), path)
    return path


def test_writing_makes_folders_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "x" / "v0" / "last.ckpt"
    for step in (7, 8):
        with saving.patch("save.compute_crc32", step == 7):
            checkpoint.write(contents(global_step=step), path)
        assert (checkpoint.read(path)["global_step"], [*path.parent.iterdir()]) == (step, [path])
    assert path.stat().st_mode & 0o444 == 0o444, "others may read it"
    read = checkpoint.read(path)["state_dict"]["model.weight"]
    path.write_bytes(bytes(path.stat().st_size))  # a mapped file would change with it
    assert torch.equal(read, contents()["state_dict"]["model.weight"])
    assert sys.getrefcount(read) == 2, "`read` and the call's: no cycle keeps it until a garbage collection"


def test_the_error_of_a_full_disk_is_not_replaced_by_torchs() -> None:
    """Torch complains about the length of the file when it closes it."""
    file = Mock(write=Mock(side_effect=[30, *[OSError(28, "No space left on device")] * 99]))
    with pytest.raises(OSError, match="No space left on device"):
        checkpoint.write(contents(), "full.ckpt", lambda path: nullcontext(file))


def interrupt_the_rename(temporary: Path, target: Path) -> None:
    assert temporary.parent == target.parent, "another file system could not rename it in one step"
    assert checkpoint.read(temporary)["global_step"] == 8
    raise KeyboardInterrupt


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize(("where", "failure", "error"), [
    ("torch.save", Mock(side_effect=RuntimeError), RuntimeError),
    ("os.fsync", Mock(side_effect=KeyboardInterrupt), KeyboardInterrupt),
    ("os.replace", interrupt_the_rename, KeyboardInterrupt),
])  # fmt: skip
def test_a_failed_write_changes_nothing(
    tmp_path: Path, monkeypatch: Any, existing: bool, where: str, failure: Any, error: type[BaseException]
) -> None:
    path = tmp_path / "last.ckpt"
    if existing:
        checkpoint.write(contents(), path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(where, failure)
    with pytest.raises(error):
        checkpoint.write(contents(global_step=8), path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with written_whole(tmp_path / "pipe") as file:
        file.write(b"text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def refused(path: Path, reason: str = "damaged, or not a minitx checkpoint") -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        checkpoint.read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    shown = caught.value.__context__ if not caught.value.__suppress_context__ else None
    assert shown is None, "torch's own complaint advises weights_only=False"


def test_missing_truncated_and_random_files_are_refused(good: Path) -> None:
    whole, chance = good.read_bytes(), random.Random(1)
    cuts = {*range(0, len(whole), max(1, len(whole) // 40)), *range(len(whole) - 25, len(whole))}
    noise = [chance.randbytes(10**size) for size in range(5)]
    for content in [*(whole[:cut] for cut in cuts), *noise, *(part + whole[len(part) :] for part in noise[1:])]:
        good.write_bytes(content)
        refused(good)
    good.write_bytes(whole.replace(b"\0\0\x30\x41", b"\0\0\x30\x51"))  # a bit of 11.0
    refused(good, "is damaged, .*; its contents do not match their checksums")
    refused(good.parent, "there is no checkpoint file")


def test_a_file_that_may_not_be_read_is_not_called_damaged(good: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("zipfile.ZipFile", Mock(side_effect=PermissionError(13, "Permission denied", str(good))))
    with pytest.raises(SystemExit) as stopped:
        main(["generate", str(good), "3 1 4"])
    assert stopped.value.code == 1
    assert capsys.readouterr().err == f"minitx: {good} cannot be read or written (Permission denied)\n"


FOREIGN: list[tuple[Any, str]] = [
    *((thing, "not a minitx checkpoint: it has no minitx section") for thing in (
        {"state_dict": {}, "epoch": 3}, {"minitx": 3}, {"minitx": {}}, [1, 2, 3], torch.zeros(3), "text", None,
        {"minitx": {"format": "1", "config": {}, "tokenizer": {}}, "state_dict": {}},
    )),
    *((thing, "damaged, or not") for thing in (nn.Linear(2, 2), contents(x=nn.Linear(2, 2)), contents(x=Path()))),
    (contents(minitx={**contents()["minitx"], "format": 2}), "checkpoint format 2, .* update minitx"),
    ({"minitx": contents()["minitx"]}, "it has no state_dict"),
    (contents(minitx={"format": 1}), "it has no config and no tokenizer"),
]  # fmt: skip


@pytest.mark.parametrize(("thing", "reason"), FOREIGN)
def test_foreign_files_are_refused_by_name(tmp_path: Path, thing: Any, reason: str) -> None:
    torch.save(thing, tmp_path / "foreign.ckpt")
    refused(tmp_path / "foreign.ckpt", reason)


@pytest.mark.parametrize(("names", "asked", "expected"), [
    (["v0/best", "v0/last"], "best", "v0/best"),
    (["v0/best", "v0/last"], "last", "v0/last"),
    ([f"v{number}/best" for number in range(12)], "best", "v11/best"),  # 11 comes after 2
    (["v0/best", "v1/last"], "best", "v1/last"),  # the newest run, even if it has not validated yet
    (["v0/best", "v1/other"], "best", "v0/best"),  # a run that broke off before its first checkpoint
    (["v0/best", "v1/best"], "last", None),
    (["best", "last"], "best", "best"),
    (["vx/best", "v/best", "version1/best", "v0/.last.ckpt.abc123"], "best", None),
    ([], "best", None),
])  # fmt: skip
def test_a_run_folder_means_its_newest_version(
    tmp_path: Path, names: list[str], asked: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.ckpt").touch()
    if expected is None:
        sentence = rf"{re.escape(str(tmp_path))} holds no checkpoint \({asked}\.ckpt\).* in training has one from"
        with pytest.raises(ConfigError, match=sentence):
            checkpoint.find(tmp_path, asked)
        return
    found = checkpoint.find(tmp_path, asked)
    assert found == tmp_path / f"{expected}.ckpt"
    assert checkpoint.find(str(found), "last") == checkpoint.find(found.parent, asked) == found
    monkeypatch.setenv("HOME", str(tmp_path))
    assert checkpoint.find("~", asked) == found
    for path in (tmp_path / "typo", Path("/dev/null")):
        with pytest.raises(ConfigError, match=rf"there is no checkpoint and no run folder at {path}"):
            checkpoint.find(path)
