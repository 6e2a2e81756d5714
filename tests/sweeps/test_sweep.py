"""Small sweeps: run, resumed after failures and interrupts, measured by length, and refused before any run starts."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minitx.cli.config_parser import config_parser
from minitx.config.errors import ConfigError
from minitx.sweeps import rows, worker
from minitx.sweeps import sweep as sweeping
from minitx.sweeps.plan import Plan, plan
from minitx.sweeps.sweep import format_seconds, sweep
from minitx.training.module import TransformerModule

ROOT = Path(__file__).parents[2]
SMALL = [
    "--config", str(ROOT / "configs/reverse.yaml"), "--data.length", "[1,4]", "--data.test_size", "20",
    "--data.validation_size", "10", "--model.d_model", "16", "--model.n_layers", "1", "--trainer.max_steps", "2",
    "--trainer.accelerator", "cpu", "--trainer.save_every_n_steps", "1",
]  # fmt: skip


@pytest.fixture
def planned(tmp_path: Path) -> Any:
    def make(*words: str, grid: dict[str, list[str]] | None = None, seeds: int = 1, lengths: str | None = None) -> Plan:
        values = config_parser().parse_args([*SMALL, "--run.folder", str(tmp_path), *words]).values
        return plan(values, grid or {}, seeds, lengths)

    return make


class InProcess:
    """A replacement for run_jobs that runs jobs in this process and records them."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, int]] = []
        self.fail = self.stop = False

    def __call__(self, jobs: list[dict[str, Any]], environments: Any) -> Iterator[tuple[dict[str, Any], Any]]:
        for job in jobs:
            self.jobs.append(("".join(job["settings"].values()), job["seed"]))
            bad = self.fail and self.jobs[-1] == ("rope", 2)
            yield job, {"error": "out of memory"} if bad else {"row": worker.run(job)}
            if self.stop:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(10)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    pool = InProcess()
    monkeypatch.setattr(sweeping, "run_jobs", pool)
    return pool


def test_a_sweep_runs_each_job_once_and_resumes_after_a_failure(
    planned: Any, pool: InProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {"grid": {"model.position.name": ["none", "rope"]}, "seeds": 2}
    folder = tmp_path / "reverse_sweep"
    handler = signal.getsignal(signal.SIGTERM)
    pool.stop = True
    with pytest.raises(SystemExit) as stopped:
        sweep(planned(**points))
    assert stopped.value.code == 143
    assert "stopped; the same command resumes the sweep" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == handler

    pool.stop, pool.fail = False, True
    found, failed = sweep(planned(**points))
    assert pool.jobs == [("none", 1), ("none", 2), ("rope", 1), ("rope", 2)]
    assert [row["seed"] for row in found] == [1, 2, 1]
    (sentence,) = failed
    assert "model.position.name rope, seed 2: out of memory (see " in sentence
    out = capsys.readouterr().out
    assert "1 of them finished before" in out
    assert "4 of 4 runs\n" in out
    results = json.loads((folder / "model.position.name=none/seed1/v0/results.json").read_text())
    row = found[0]
    assert row["figures"]["exact_match"] == results["exact_match"]
    assert "seconds" not in row["figures"]
    assert (row["steps"], row["seconds"], row["by_length"]) == (2, results["seconds"], None)
    assert row["flops"] == 2 * row["flops_per_step"] > 0
    assert row["config"]["model"]["position"]["name"] == "none"
    assert {"device", "torch", "lightning", "python", "date"} <= set(row["machine"])
    assert len({row["fingerprint"] for row in found}) == 3

    # Lengths added later: finished runs are measured, not trained a second time.
    pool.fail = False
    pool.jobs.clear()
    found, failed = sweep(planned(**points, lengths="2:6"), out=tmp_path / "out")
    assert (len(pool.jobs), failed) == (4, [])
    assert [path.name for path in folder.glob("*/seed*/v*")] == ["v0"] * 4
    assert [[*map(int, row["by_length"])] for row in found] == [[2, 3, 4, 5, 6]] * 4
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"table.csv", "table.md", "lengths.csv", "lengths.png"}
    assert "exact match, length 2-4 | exact match, length 5-6" in (tmp_path / "out/table.md").read_text()


def test_an_interrupted_run_is_resumed_and_another_config_is_another_experiment(
    planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = planned().jobs
    steps: list[int] = []
    original = TransformerModule.training_step

    def training_step(self: TransformerModule, batch: Any, index: int) -> Any:
        if self.trainer.global_step == 1 and len(steps) == 1:
            raise RuntimeError("power cut")
        steps.append(self.trainer.global_step)
        return original(self, batch, index)

    monkeypatch.setattr(TransformerModule, "training_step", training_step)
    with pytest.raises(RuntimeError, match="power cut"):
        worker.run(job)
    steps.append(-1)
    row = worker.run(job)
    assert steps == [0, -1, 1]
    assert (Path(row["folder"]).name, row["steps"]) == ("v0", 2)
    other = worker.run(planned("--optimizer.lr", "0.001").jobs[0])
    assert (Path(other["folder"]).name, other["fingerprint"] != row["fingerprint"]) == ("v1", True)
    monkeypatch.delattr(worker, "train_config")  # a finished run is not trained a second time
    assert worker.run(job)["figures"] == row["figures"]


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        ({"n": 1}, {"row": {"n": 1}}),
        (ConfigError("wrong key\nmore"), {"error": "wrong key"}),
        (IndexError("out of range"), {"error": "IndexError: out of range"}),
    ],
)
def test_a_worker_answers_with_one_line_of_json(
    outcome: Any, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(job: dict[str, Any]) -> dict[str, Any]:
        os.write(1, b"output of a library")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome | job

    monkeypatch.setattr(worker, "run", run)
    monkeypatch.setattr(sys, "stdin", io.StringIO("{}"))
    stdout = os.dup(1)
    try:
        worker.main()
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    captured = capfd.readouterr()
    assert json.loads(captured.out) == answer
    assert "output of a library" in captured.err
    assert ("Traceback" in captured.err) == ("error" in answer)


INVALID = [
    (["--set", "model.position.name=rope,alibo"], "did you mean alibi?"),
    (["--set", "model.n_head=2"], "did you mean model.n_heads?"),
    (["--set", "model.n_heads=2,3"], "d_model 16 and n_heads 3"),
    (["--set", "data.symbols=10,1"], "too few different examples"),
    (["--set", "rope"], "--set must be KEY=VALUE"),
    (["--seeds", "0"], "--seeds must be at least 1, got 0"),
    (["--jobs", "0"], "--jobs must be at least 1, got 0"),
    (["--lengths", "5"], "--lengths must be FROM:TO"),
    (["--trainer.devices", "2"], "trainer.devices must be 1 in a sweep, got 2"),
    (["--trainer.num_nodes", "2"], "trainer.num_nodes must be 1 in a sweep, got 2"),
    (["--sets", "a=b"], "did you mean --set?"),
]


def test_invalid_input_is_refused_before_any_run(tmp_path: Path, refused: Callable) -> None:
    for words, sentence in INVALID:
        assert sentence in refused("sweep", *SMALL, "--run.folder", str(tmp_path / "runs"), *words)
    words = ["--data.name", "markov", "--model.architecture", "decoder_only", "--run.folder", str(tmp_path)]
    assert "--lengths is for tasks" in refused("sweep", *words, "--lengths", "1:5")
    assert "there is nothing to train on" in refused("sweep", "--set", "model.n_heads=2")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_the_command_runs_in_processes_and_stops_on_sigterm(tmp_path: Path) -> None:
    words = [*SMALL, "--run.folder", str(tmp_path), "--seeds", "1", "--set", "trainer.max_steps=2,100000"]
    code = "import sys; from minitx.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "sweep", *words, "--lengths", "1:2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    endless = tmp_path / "reverse_sweep/trainer.max_steps=100000/seed1/v0"
    deadline = time.monotonic() + 180
    while not (endless / "last.ckpt").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert err == ""
    assert "1 of 2 runs, " in out
    assert "stopped; the same command resumes the sweep" in out
    (row,) = rows.read(tmp_path / "reverse_sweep/rows.jsonl")
    assert row["settings"] == {"trainer.max_steps": "2"}
    assert set(row["by_length"]) == {"1", "2"}
    assert "resume with --resume" in (endless.parents[1] / "seed1.log").read_text()


def test_durations() -> None:
    assert [*map(format_seconds, (40, 240, 9000))] == ["40 s", "4 min", "2.5 h"]
