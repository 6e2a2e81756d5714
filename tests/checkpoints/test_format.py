import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from minitx.checkpoints import format as checkpoint

CONFIG = {"run": {"name": "x"}, "model": {"d_model": 8}}
TOKENIZER = {"model": {"vocab": {"<pad>": 0}}}


def contents(**changes: Any) -> dict[str, Any]:
    weights = {"model.weight": torch.arange(12.0).reshape(3, 4)}
    return {"minitx": checkpoint.header(CONFIG, TOKENIZER), "state_dict": weights, "global_step": 7, **changes}


def save(thing: Any, path: Path) -> Path:
    torch.save(thing, path)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.ckpt"
    checkpoint.write(contents(), path)
    return path


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(good: Path) -> None:
    read = checkpoint.read(good)
    assert read["minitx"] == {"format": checkpoint.FORMAT, "config": CONFIG, "tokenizer": TOKENIZER}
    assert read["global_step"] == 7
    assert torch.equal(read["state_dict"]["model.weight"], contents()["state_dict"]["model.weight"])


def test_writing_makes_folders_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "x" / "v0" / "last.ckpt"
    for step in (7, 8):
        checkpoint.write(contents(global_step=step), path)
        assert checkpoint.read(path)["global_step"] == step
        assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o444 == 0o444, "others may read it"


class Unpicklable:
    def __reduce__(self) -> Any:
        raise RuntimeError("the disk is full")


def fail_after_some_bytes(thing: Any, file: Any) -> None:
    file.write(b"half a file")
    raise OSError(28, "No space left on device")


def interrupt(*args: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize(
    ("where", "failure", "error"),
    [
        ("torch.save", fail_after_some_bytes, OSError),
        ("torch.save", interrupt, KeyboardInterrupt),
        ("os.fsync", interrupt, KeyboardInterrupt),
        ("os.replace", interrupt, KeyboardInterrupt),
        (None, None, RuntimeError),
    ],
)
def test_a_failed_write_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    existing: bool,
    where: str | None,
    failure: Callable | None,
    error: type[BaseException],
) -> None:
    path = tmp_path / "last.ckpt"
    if existing:
        checkpoint.write(contents(), path)
    before = path.read_bytes() if existing else None
    if where is not None:
        monkeypatch.setattr(where, failure)
    with pytest.raises(error):
        checkpoint.write(contents(broken=Unpicklable()) if where is None else contents(global_step=8), path)
    assert list(tmp_path.iterdir()) == ([path] if existing else [])
    if existing:
        assert path.read_bytes() == before


def test_the_file_appears_only_when_it_is_whole_and_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    happened: list[str] = []
    replace, fsync = os.replace, os.fsync

    def synced(descriptor: int) -> None:
        happened.append("on disk")
        fsync(descriptor)

    def renamed(temporary: Any, target: Any) -> None:
        assert not path.exists()
        assert Path(temporary).parent == path.parent, "another file system could not rename it in one step"
        assert checkpoint.read(temporary)["global_step"] == 7
        happened.append("renamed")
        replace(temporary, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    checkpoint.write(contents(), path)
    assert happened == ["on disk", "renamed"]


def test_a_temporary_file_of_a_killed_process_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    version = tmp_path / "run" / "v0"
    version.mkdir(parents=True)
    (version / ".last.ckpt.abc123").write_bytes(b"half")
    with pytest.raises(ValueError, match="holds no checkpoint"):
        checkpoint.find(tmp_path / "run")


# ---- reading ---------------------------------------------------------------------------------------------------------


def refused(path: Path, reason: str = "damaged, or not a minitx checkpoint") -> str:
    with pytest.raises(ValueError, match=reason) as caught:
        checkpoint.read(path)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    shown = caught.value.__context__ if not caught.value.__suppress_context__ else None
    assert shown is None, "torch's own complaint advises weights_only=False"
    return sentence


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no checkpoint file"):
        checkpoint.read(tmp_path / "missing.ckpt")
    with pytest.raises(ValueError, match="there is no checkpoint file"):
        checkpoint.read(tmp_path)


def test_a_truncated_file_is_refused_wherever_it_was_cut(good: Path) -> None:
    whole = good.read_bytes()
    places = {0, *range(1, len(whole), max(1, len(whole) // 40)), *range(len(whole) - 25, len(whole))}
    for place in sorted(places):
        good.write_bytes(whole[:place])
        refused(good)


def test_random_bytes_are_refused(good: Path, tmp_path: Path) -> None:
    whole = good.read_bytes()
    for content in (*(random.Random(size).randbytes(10**size) for size in range(5)), bytes(len(whole) // 2)):
        for rest in (b"", whole[len(content) :]):
            (tmp_path / "random.ckpt").write_bytes(content + rest if content != whole[: len(content)] else content)
            refused(tmp_path / "random.ckpt")


@pytest.mark.parametrize(
    "thing",
    [
        {"weight": torch.zeros(2)},
        {"state_dict": {}, "epoch": 3},
        {"minitx": 3},
        {"minitx": {}},
        {"minitx": {"format": "1", "config": {}, "tokenizer": {}}, "state_dict": {}},
        [1, 2, 3],
        torch.zeros(3),
        "text",
        None,
    ],
)
def test_a_foreign_torch_file_is_refused(tmp_path: Path, thing: Any) -> None:
    refused(save(thing, tmp_path / "foreign.ckpt"), "not a minitx checkpoint: it has no minitx section")


def test_a_file_with_pickled_classes_is_refused(tmp_path: Path) -> None:
    for thing in (nn.Linear(2, 2), contents(extra=nn.Linear(2, 2)), contents(extra=Path("x"))):
        refused(save(thing, tmp_path / "classes.ckpt"))


def test_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    header = {**checkpoint.header(CONFIG, TOKENIZER), "format": checkpoint.FORMAT + 1}
    sentence = refused(save(contents(minitx=header), tmp_path / "newer.ckpt"), "update minitx")
    assert f"format {checkpoint.FORMAT + 1}" in sentence


def test_missing_sections_are_named(tmp_path: Path) -> None:
    thing = contents()
    for section, names in ((None, "state_dict"), ("config", "config"), ("tokenizer", "config and no tokenizer")):
        del (thing["minitx"] if section else thing)[section or "state_dict"]
        refused(save(thing, tmp_path / "partial.ckpt"), f"it has no {names}")


# ---- finding ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """run("v0/best", ...) makes a run folder with these checkpoints."""

    def make(*names: str) -> Path:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        for name in names:
            file = folder / f"{name}.ckpt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        return folder

    return make


def test_a_file_means_itself(good: Path) -> None:
    assert checkpoint.find(good) == good
    assert checkpoint.find(str(good)) == good
    assert checkpoint.find(good, "last") == good


@pytest.mark.parametrize(
    ("names", "asked", "expected"),
    [
        (["v0/best", "v0/last"], "best", "v0/best"),
        (["v0/best", "v0/last"], "last", "v0/last"),
        (["v0/best", "v1/best"], "best", "v1/best"),
        ([f"v{number}/best" for number in range(12)], "best", "v11/best"),  # 11 comes after 2
        (["v0/best", "v1/last"], "best", "v1/last"),  # the newest run, even if it has not validated yet
        (["v0/last"], "best", "v0/last"),
        (["v0/best", "v1/other"], "best", "v0/best"),  # a run that broke off before its first checkpoint
        (["v0/best", "v1/best"], "last", None),
        (["best", "last"], "best", "best"),
        (["v0/other"], "best", None),
        (["vx/best", "v/best", "version1/best"], "best", None),
        ([], "best", None),
    ],
)
def test_a_run_folder_means_its_newest_version(run: Callable, names: list, asked: str, expected: str | None) -> None:
    folder = run(*names)
    if expected is None:
        with pytest.raises(ValueError, match="holds no checkpoint") as caught:
            checkpoint.find(folder, asked)
        assert str(folder) in str(caught.value)
        assert f"{asked}.ckpt" in str(caught.value)
    else:
        assert checkpoint.find(folder, asked) == folder / f"{expected}.ckpt"


def test_one_version_of_a_run_is_found(run: Callable) -> None:
    folder = run("v0/best", "v1/best", "v2/last")
    assert checkpoint.find(folder / "v0") == folder / "v0" / "best.ckpt"
    assert checkpoint.find(folder / "v2") == folder / "v2" / "last.ckpt"


def test_a_path_without_anything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no checkpoint and no run folder at .*typo"):
        checkpoint.find(tmp_path / "typo")


def test_versions_come_oldest_first(run: Callable) -> None:
    folder = run("v10/best", "v9/best", "v0/best", "w1/best")
    assert [part.name for part in checkpoint.versions(folder)] == ["v0", "v9", "v10"]
    assert checkpoint.versions(folder / "not there") == []
