"""Whole sweeps, small: what is done, what is not done again, what fails, and what is refused before any work."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minitx.cli.main import main
from minitx.config.parser import config_from_words
from minitx.config.schema import Config
from minitx.sweeps import rows
from minitx.sweeps import sweep as running
from minitx.sweeps.plan import Plan, plan
from minitx.sweeps.sweep import spelt, sweep
from minitx.sweeps.worker import carry_out
from minitx.training.module import TransformerModule

ROOT = Path(__file__).parents[2]
SMALL = [
    "--config", str(ROOT / "configs/reverse.yaml"), "--data.length", "[1,4]", "--data.test_size", "20",
    "--data.validation_size", "10", "--model.d_model", "16", "--model.n_layers", "1", "--trainer.max_steps", "2",
    "--trainer.accelerator", "cpu", "--trainer.save_every_n_steps", "1",
]  # fmt: skip


@pytest.fixture
def configured(tmp_path: Path) -> Callable[[list[str]], Config]:
    def make(words: list[str]) -> Config:
        return config_from_words([*SMALL, "--run.folder", str(tmp_path), *words])

    return make


class Here:
    """In place of a Pool: works in this process, and remembers."""

    done: list[dict[str, Any]]
    fail: str = ""

    def __init__(self, environments: list[dict[str, str]]) -> None:
        self.workers = len(environments)

    def run(self, jobs: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        for job in jobs:
            Here.done.append(job)
            bad = Here.fail and Here.fail in str(job["settings"]) and job["seed"] == 2
            yield job, {"error": "out of memory"} if bad else {"row": carry_out(job)}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> type[Here]:
    monkeypatch.setattr(running, "Pool", Here)
    Here.done, Here.fail = [], ""
    return Here


def test_a_sweep_does_each_run_once_and_goes_on_after_a_failure(
    configured: Any, here: type[Here], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def planned(lengths: str | None = None) -> Plan:
        return plan(configured, {"model.position.name": ["none", "rope"]}, 2, lengths)

    here.fail = "rope"
    found, failed = sweep(planned())
    folder = tmp_path / "reverse_sweep"
    assert [(row["settings"]["model.position.name"], row["seed"]) for row in found] == [
        ("none", 1), ("none", 2), ("rope", 1),
    ]  # fmt: skip
    assert len(failed) == 1
    assert "model.position.name rope, seed 2: out of memory (see " in failed[0]
    assert "4 of 4 runs\n" in capsys.readouterr().out
    first = json.loads((folder / "model.position.name=none/seed1/v0/results.json").read_text())
    row = found[0]
    assert row["figures"]["exact_match"] == first["exact_match"]
    assert "seconds" not in row["figures"]
    assert (row["steps"], row["seconds"], row["by_length"]) == (2, first["seconds"], None)
    assert row["flops"] == 2 * row["flops_per_step"] > 0
    assert row["config"]["model"]["position"]["name"] == "none"
    assert {"device", "torch", "lightning", "python", "date"} <= set(row["machine"])
    assert len({row["fingerprint"] for row in found}) == 3

    here.fail = ""
    here.done.clear()
    found, failed = sweep(planned())
    assert [(job["settings"]["model.position.name"], job["seed"]) for job in here.done] == [("rope", 2)]
    assert len(found) == 4
    assert not failed
    assert "3 of them done before" in capsys.readouterr().out

    # Asked for lengths afterwards: the same runs are measured, not trained again.
    here.done.clear()
    found, _ = sweep(planned("2:6"), out=tmp_path / "out")
    assert len(here.done) == 4
    assert [path.name for path in folder.glob("*/seed*/v*")] == ["v0"] * 4
    assert [[*map(int, row["by_length"])] for row in found] == [[2, 3, 4, 5, 6]] * 4
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"table.csv", "table.md", "lengths.csv", "lengths.png"}
    assert "exact match, length 2-4 | exact match, length 5-6" in (tmp_path / "out/table.md").read_text()


def test_another_config_in_the_same_folder_is_another_experiment(configured: Any, here: type[Here]) -> None:
    (old,), _ = sweep(plan(configured, {}, 1))
    (new,), _ = sweep(plan(lambda words: configured([*words, "--optimizer.lr", "0.001"]), {}, 1))
    assert len(here.done) == 2
    assert [Path(row["folder"]).name for row in (old, new)] == ["v0", "v1"]
    (again,), _ = sweep(plan(configured, {}, 1))
    assert len(here.done) == 2
    assert again == old


def test_an_interrupted_run_is_continued(configured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (point,) = plan(configured, {}, 1).points
    steps: list[int] = []
    original = TransformerModule.training_step

    def training_step(self: TransformerModule, batch: Any, index: int) -> Any:
        if self.trainer.global_step == 1 and len(steps) == 1:
            raise RuntimeError("power cut")
        steps.append(self.trainer.global_step)
        return original(self, batch, index)

    monkeypatch.setattr(TransformerModule, "training_step", training_step)
    with pytest.raises(RuntimeError, match="power cut"):
        carry_out(point.job(None))
    steps.append(-1)
    row = carry_out(point.job(None))
    assert steps == [0, -1, 1]
    assert Path(row["folder"]).name == "v0"
    assert row["steps"] == 2
    monkeypatch.delattr("minitx.sweeps.worker.train")  # a finished one is not trained again
    assert carry_out(point.job(None))["figures"] == row["figures"]


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["sweep", *words])
    captured = capsys.readouterr()
    assert (stopped.value.code, captured.out) == (2, "")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "model.position.nam=rope"], "unknown key model.position.nam"),
        (["--set", "model.position.name=rope,alibo"], "did you mean alibi?"),
        (["--set", "model.n_head=2"], "did you mean model.n_heads?"),
        (["--set", "model.n_heads=2,3"], "d_model 16 and n_heads 3"),
        (["--set", "optimizer.lr=fast"], "optimizer.lr"),
        (["--set", "data.length=[1,4],[5,2]"], "data.length must be [shortest, longest]"),
        (["--set", "run.seed=1,2"], "--seeds N"),
        (["--set", "data.symbols=10,1"], "too few different examples"),
        (["--set", "rope"], "--set must be KEY=VALUE"),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--lengths", "5"], "--lengths must be FROM:TO"),
        (["--trainer.devices", "2"], "trainer.devices must be 1 in a sweep, got 2"),
        (["--trainer.num_nodes", "2"], "trainer.num_nodes must be 1 in a sweep, got 2"),
        (["--sets", "a=b"], "did you mean set?"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refused([*SMALL, "--run.folder", str(tmp_path / "runs"), *words], capsys)
    assert not (tmp_path / "runs").exists()


def test_lengths_are_for_questions_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data.name", "markov", "--model.architecture", "decoder_only", "--run.folder", str(tmp_path)]
    assert "--lengths is for tasks" in refused([*words, "--lengths", "1:5"], capsys)
    assert not [*tmp_path.iterdir()]


def test_without_a_config_there_is_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is nothing to train on" in refused(["--set", "model.n_heads=2"], capsys)


def test_the_command_works_in_processes_of_its_own_and_stops_when_told(tmp_path: Path) -> None:
    words = [*SMALL, "--run.folder", str(tmp_path), "--seeds", "1", "--set", "trainer.max_steps=2,100000"]
    code = "import sys; from minitx.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "sweep", *words, "--lengths", "1:2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    endless = tmp_path / "reverse_sweep/trainer.max_steps=100000/seed1/v0"
    deadline = time.monotonic() + 90
    while not (endless / "last.ckpt").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert err == ""
    assert "1 of 2 runs, " in out
    assert "stopped; the same command goes on" in out
    (row,) = rows.read(tmp_path / "reverse_sweep/rows.jsonl")
    assert row["settings"] == {"trainer.max_steps": "2"}
    assert set(row["by_length"]) == {"1", "2"}
    assert "go on with --resume" in (endless.parents[1] / "seed1.log").read_text()


@pytest.mark.parametrize(("seconds", "words"), [(40, "40 s"), (240, "4 min"), (9000, "2.5 h")])
def test_times_as_people_say_them(seconds: float, words: str) -> None:
    assert spelt(seconds) == words
