"""Small sweeps: run, resumed after failures and interrupts, measured by length, and refused before any run starts."""

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
import torch

from minitx.checkpoints.locks import locked
from minitx.cli.config_parser import Parser
from minitx.config.errors import ConfigError, RunFailed
from minitx.sweeps import grid, trials, worker
from minitx.sweeps import sweep as sweeping
from minitx.sweeps.plan import GRID, Plan, SearchOptions, plan
from minitx.sweeps.processes import environments
from minitx.sweeps.sweep import sweep
from minitx.sweeps.trials import ClaimedTrial, Trials
from minitx.training.api import train_config
from parallel_files import make_files, write_split
from tests.training.interrupting import ROOT, killed

SMALL = [
    "--config", str(ROOT / "configs/reverse.yaml"), "--data.length", "[1,4]", "--data.test_size", "20",
    "--data.validation_size", "10", "--model.d_model", "16", "--model.n_layers", "1", "--trainer.max_steps", "2",
    "--trainer.accelerator", "cpu", "--trainer.precision", "32-true", "--trainer.save_every_n_steps", "1",
]  # fmt: skip


@pytest.fixture
def planned(tmp_path: Path) -> Any:
    def make(*words: str, grid: Any = None, seeds: int = 1, lengths: Any = None, search: Any = GRID) -> Plan:
        values = Parser(configured=True).parse_args([*SMALL, "--run.folder", str(tmp_path), *words]).values
        return plan(values, grid or {}, seeds, lengths, search=search)

    return make


class InProcess:
    """A replacement for processes.start that works on trials in this process and records them."""

    ended = Mock(sentinel=os.open(os.devnull, os.O_RDONLY), exitcode=7, is_alive=Mock(return_value=False))

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.runs: list[tuple[str, int]] = []
        self.fail = self.stop = False
        patch.setattr(sweeping, "start", self)

    def __call__(self, claimed: ClaimedTrial, environment: dict[str, str]) -> Mock:
        self.runs.append(("".join(claimed.settings.values()), claimed.seeds[0]))
        if self.runs[-1] == ("none", 2) and self.stop:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        if self.runs[-1] != ("rope", 2) or not self.fail:  # otherwise it exits without ending its trial
            worker.work(claimed)
        return self.ended


def test_trials_run_once_and_resume_after_failures(planned: Any, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    processes, points = InProcess(monkeypatch), {"grid": {"model.position.name": ["none", "rope"]}, "seeds": 2}
    folder, handler, processes.stop = tmp_path / "reverse_sweep", signal.getsignal(signal.SIGTERM), True
    monkeypatch.setattr(trials, "STALE_SECONDS", 0.0)  # the trial that was started at the signal
    with pytest.raises(SystemExit) as stopped:
        sweep(planned(**points))
    assert (stopped.value.code, signal.getsignal(signal.SIGTERM)) == (143, handler)
    assert "stopped; the same command resumes the sweep" in capsys.readouterr().out
    processes.stop, processes.fail = False, True
    found, failed = sweep(planned(**points))
    assert sorted(processes.runs) == [("none", 1), ("none", 2), ("none", 2), ("rope", 1), ("rope", 2)]
    assert ([row["seed"] for row in found], len(failed)) == ([1, 2, 1], 1)
    assert "model.position.name rope, run.seed 2: its process exited with 7 (see " in failed[0]
    assert "1 of them finished before" in capsys.readouterr().out
    row, results = found[0], json.loads((folder / "model.position.name=none/seed1/v0/results.json").read_text())
    assert (row["figures"]["exact_match"], "seconds" in row["figures"]) == (results["exact_match"], False)
    assert (row["steps"], row["seconds"], row["by_length"]) == (2, results["seconds"], {})
    assert row["flops"] == 2 * row["flops_per_step"] > 0
    assert {"device", "torch", "lightning", "python", "date"} <= set(row["machine"])
    best = torch.load(Path(row["folder"]) / "last.ckpt", weights_only=True)["callbacks"]
    assert row["score"] in [float(state.get("best_model_score", -1)) for state in best.values()]
    processes.fail, processes.runs = False, []
    (own := tmp_path / "lengths.csv").write_text("length,words\n")
    failed = sweep(planned("--run.seed=7", **points), out=tmp_path)[1]
    assert (failed, processes.runs, own.exists()) == ([], [("rope", 2)], True), "it repeats what failed, and that alone"

    # Lengths added later: finished runs are measured, not trained a second time.
    found, failed = sweep(planned(**points, lengths="2:6"), out=tmp_path / "out")
    assert (len(processes.runs), failed, [path.name for path in folder.glob("*/seed*/v*")]) == (1 + 4, [], ["v0"] * 4)
    assert [[*map(int, row["by_length"])] for row in found] == [[2, 3, 4, 5, 6]] * 4
    assert {*os.listdir(tmp_path / "out")} == {"table.csv", "table.md", "lengths.csv", "lengths.png"}
    assert "exact match, length 2-4 | exact match, length 5-6" in (tmp_path / "out/table.md").read_text()
    sweep(planned(**points), out=tmp_path / "out")
    assert {*os.listdir(tmp_path / "out")} == {"table.csv", "table.md"}


@pytest.mark.slow
def test_a_search_trains_every_seed_and_prunes(planned: Any, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    InProcess(monkeypatch)
    plan = planned(grid={"optimizer.lr": grid.Range("1e-4", "1e-2")}, seeds=2, search=SearchOptions("tpe", 2, True))
    place = f"sqlite:///{tmp_path / 'study.db'}"
    pruned = iter([False, False, True])
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda trial: next(pruned))
    rows, failed = sweep(plan, study=place)
    assert ([row["seed"] for row in rows], failed) == ([1, 2], [])
    assert "1 pruned:\noptimizer.lr " in capsys.readouterr().out
    stored = optuna.load_study(study_name=plan.study, storage=place)
    assert stored.best_value == pytest.approx(statistics.fmean(row["score"] for row in rows))
    assert [*stored.best_trial.intermediate_values] == [2, 4], "the steps of the second seed come after the first's"


def test_an_interrupted_run_is_resumed_another_config_is_not(planned: Any, monkeypatch: Any, tmp_path: Path) -> None:
    def run(*words: str) -> dict[str, Any]:
        return worker.run(Trials(planned(*words), str(tmp_path / words[0])).claim(), 1)

    with killed(1):
        run("--run.seed", "1")
    folder = tmp_path / "reverse_sweep/all/seed1/v0"
    with locked(folder), pytest.raises(ConfigError, match=f"another process is training in {folder}"):
        run("--run.folder", str(tmp_path))
    row = run("--run.seed=1")
    assert (Path(row["folder"]).name, row["steps"]) == ("v0", 2)
    assert Path(run("--optimizer.lr", "0.001")["folder"]).name == "v1"
    (file := folder / "config.yaml").write_text(file.read_text().replace("  ema: 0.0\n", ""))  # by an earlier version
    monkeypatch.delattr(worker, "train_config")  # a finished run is not trained a second time
    assert run("--run.name=reverse")["figures"] == row["figures"]


def test_a_trial_waits_for_another_with_its_settings(planned: Any, monkeypatch: Any, tmp_path: Path) -> None:
    made = planned(grid={"model.n_heads": ["2"]}, search=SearchOptions("random", 2))
    first, second = (Trials(made, str(tmp_path / "study")).claim() for _ in range(2))
    train = Mock(side_effect=lambda *run, **more: pool.submit(worker.work, second) and train_config(*run, **more))
    monkeypatch.setattr(worker, "train_config", train)
    with ThreadPoolExecutor(1) as pool:
        worker.work(first)
    assert ([row["folder"] for row in second.rows], train.call_count) == ([row["folder"] for row in first.rows], 1)


def test_a_run_on_other_data_is_no_result_of_this_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "run": {"folder": str(tmp_path)}, "data": {"name": "text", "path": str(tmp_path / "own.txt"), "block": 8},
        "model": {"architecture": "decoder_only", "d_model": 8, "n_heads": 2, "n_layers": 1},
        "trainer": {"max_steps": 2, "save_every_n_steps": 1, "accelerator": "cpu", "precision": "32-true"},
    }  # fmt: skip

    def version(text: str) -> tuple[str, str]:
        (tmp_path / "own.txt").write_text(text * 60)
        made = plan(values, {}, 1)
        return Path(worker.run(Mock(plan=made, settings={}, rows=[]), 1)["folder"]).name, made.study

    with killed(1):
        version("to be ")
    (newer, study), file = version("or not "), tmp_path / "run_sweep/all/seed1/v1/last.ckpt"
    before = plan(values, {}, 1)
    older, first_study = version("to be ")
    assert (newer, older, before.study, study != first_study) == ("v1", "v2", study, True), "none is resumed"
    starts = [str(file.parents[1] / name) for name in (newer, older)]
    assert len({*plan(values, {"run.init_from": starts}, 1).digests.values()}) == 2, "a start has its own tokenizer"
    with pytest.raises(ConfigError, match="the data has changed during the sweep: repeat the command to restart it"):
        worker.run(Mock(plan=before, settings={}, rows=[]), 1)
    values["run"]["init_from"], contents = str(file), torch.load(file, weights_only=True)
    old, _, new = version("or not "), torch.save(contents | {"seconds": 0.0}, file), version("or not ")
    assert (old[0], new[0], old[1] != new[1]) == ("v3", "v4", True), "of another checkpoint"
    del values["run"]["init_from"]
    monkeypatch.delattr(worker, "train_config")
    assert version("or not ") == ("v1", study), "finished on this text"
    torch.save({k: v for k, v in torch.load(file, weights_only=True).items() if k != "data_digest"}, file)
    assert version("or not ") == ("v1", study), "also by an earlier version, without a digest"
    values["data"] = {"name": "translation", "path": str(make_files(tmp_path)), "tokenizer": {"name": "char"}}
    before = plan(values, {}, 1)
    write_split(tmp_path, "test", [("acht", "Eight")])
    values["imports"] = [str(own := tmp_path / "own.py")]
    for digit in "12":
        own.write_text(digit)
        before, earlier = plan(values, {}, 1), before
        assert before.study != earlier.study, "held-out data is data, and an own file is part of the study"
    with pytest.raises(ConfigError, match="the data or a file of imports has changed during the sweep"):
        worker.run(Mock(plan=earlier, settings={}, rows=[]), 1)


def test_a_range_and_a_list_of_its_ends_are_two_studies(planned: Any) -> None:
    tried = (["1e-4", "1e-2"], grid.Range("1e-4", "1e-2"))
    assert len({planned(grid={"optimizer.lr": each}, search=SearchOptions("tpe", 2)).study for each in tried}) == 2


def test_errors_are_sentences_and_logged_tracebacks(planned: Any, monkeypatch: Any, capsys: Any) -> None:
    bug = IndexError("of 3"), "IndexError: of 3", "Traceback"
    for error, sentence, logged in ((ConfigError("wrong key\nmore"), "wrong key", "wrong key\nmore\n"), bug):
        monkeypatch.setattr(worker, "run", Mock(side_effect=error))
        made = planned("--run.name", type(error).__name__)
        claimed = Trials(made, str(made.folder / "study.journal")).claim()
        worker.work(claimed)
        (trial,) = claimed.trial.study.trials
        assert (trial.state.name, trial.user_attrs["error"]) == ("FAIL", f"{sentence} (see {claimed.log})")
        assert capsys.readouterr().err.partition(" (most recent")[0] == logged


INVALID = [
    (["--set", "n_heads=1,2"], "unknown key n_heads: did you mean model.n_heads?"),
    (["--lengths=5"], "--lengths must be FROM:TO"), (["--set=model.position.name=rope,alibo"], "did you mean alibi?"),
    (["--set=data.symbols=10,1"], "too few different examples"), (["--jobs", "0"], "--jobs must be at least 1, got 0"),
    (["--data.symbols=3", "--data.length=[1,1]"], "to hold any out for test"), (["--sets=a=b"], "did you mean --set?"),
    (["--seeds", "0"], "--seeds must be at least 1 and at most 10,000, got 0"),
    (["--search", "tpe", "--trials", "99999999999"], "--trials must be at least 1 and at most 10,000, got 99999999999"),
    (["--set=model.n_heads=2,3"], "d_model 16 and n_heads 3"), (["--trials=4"], "--trials is for --search random"),
    (["--set", "optimizer.lr=1e-4..1e-2"], "a range needs --search random or tpe, and --trials N"),
    (["--set", "optimizer.lr=1e-4..1e-2", "--search", "tpe"], "--search tpe needs --trials N"),
    (["--search", "random", "--trials", "4"], "--search random needs a key to vary"), (["--search", "grids"], "grids"),
    (["--set", "model.dropout=0..2", "--search", "tpe", "--trials", "4"], "a number of at least 0 and below 1, got 2"),
    (["--trainer.devices", "2"], "trainer.devices must be 1 in a sweep, got 2"),
]  # fmt: skip


def test_invalid_input_is_refused_before_any_run(tmp_path: Path, refused: Callable) -> None:
    for words, sentence in INVALID:
        assert sentence in refused("sweep", *SMALL, "--run.folder", str(tmp_path / "runs"), *words)
    words = ["--data.name", "markov", "--model.architecture", "decoder_only", "--run.folder", str(tmp_path)]
    assert "--lengths is for tasks" in refused("sweep", *words, "--lengths", "1:5")
    assert "there is nothing to train on" in refused("sweep", "--set", "model.n_heads=2")
    assert not [*tmp_path.iterdir()]
    (place := tmp_path / "file").touch()
    for words in (["--out", str(place)], ["--run.folder", str(place)], ["--study", str(place / "study")]):
        assert f"{place}" in refused("sweep", *SMALL, "--seeds=1", "--run.folder", str(tmp_path / "runs"), *words)


def test_processes_share_cores_use_gpus_in_turn_and_have_ctrl_c_on_windows(planned: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert (environments(1, 0), environments(3, 0)) == ([{}], [{"OMP_NUM_THREADS": "2"}] * 3)
    assert environments(20, 0)[0] == {"OMP_NUM_THREADS": "1"}
    assert [part["CUDA_VISIBLE_DEVICES"] for part in environments(3, 2)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [part["CUDA_VISIBLE_DEVICES"] for part in environments(2, 2)] == ["5", "7"]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert environments(2, 0) == [{}, {}], "a value of the user is kept"
    monkeypatch.delattr(os, "setsid")
    monkeypatch.setattr(sweeping, "start", Mock(side_effect=[Mock(["join", "kill"]), KeyboardInterrupt]))
    with pytest.raises(KeyboardInterrupt):  # not an AttributeError of terminate: the process saves
        sweep(planned(seeds=2), jobs=2)


def test_a_study_that_is_removed_or_not_writable_is_a_sentence(planned: Any, monkeypatch: Any) -> None:
    made = planned()
    monkeypatch.setattr(sweeping, "start", lambda *_: shutil.rmtree(made.folder) or InProcess.ended)
    with pytest.raises(RunFailed, match=r"study.journal was removed during the sweep"):
        sweep(made)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(RunFailed, match=r"study.journal cannot be written \(No space .*: the same command resumes the"):
        sweep(made)


@pytest.mark.slow
def test_the_command_runs_in_processes_and_stops_on_sigterm(tmp_path: Path) -> None:
    words = ["--run.folder", str(tmp_path), "--seeds=1", "--set", "trainer.max_steps=2,100000", "--lengths", "1:2"]
    process, endless = started(*SMALL, *words), tmp_path / "reverse_sweep/trainer.max_steps=100000/seed1/v0"
    deadline = time.monotonic() + 180
    while not (endless / "last.ckpt").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "1 of 2 trials" in err) == (143, True), err
    assert "stopped; the same command resumes the sweep" in out
    (study,) = optuna.get_all_study_summaries(trials.storage(str(tmp_path / "reverse_sweep/study.journal")))
    assert study.n_trials == 2
    assert "resume with --resume" in (endless.parents[1] / "seed1.log").read_text()


def started(*words: str, folder: Path = ROOT) -> subprocess.Popen[str]:
    """`minitx sweep` in a process, with frequent heartbeats."""
    code = "import sys; from minitx.sweeps import sweep, trials; sweep.HEARTBEAT_SECONDS = 0.5"
    code += "; trials.STALE_SECONDS = 8; from minitx.cli.main import main; main(['sweep', *sys.argv[1:]])"
    command, pipe, env = [sys.executable, "-c", code, *words], subprocess.PIPE, {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=env)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False], ids=["one folder", "two folders"])
def test_killed_processes_lose_and_repeat_no_trial(shared: bool, tmp_path: Path) -> None:
    """Three commands on one study, two of them killed at random, one of these started again: an undisturbed table."""
    study = str(tmp_path / "study.journal")
    words = [*SMALL, "--set", "model.position.name=none,rope", "--set", "optimizer.lr=1e-3,1e-2", "--seeds", "3"]
    folders = [tmp_path / ("a" if shared else name) for name in "abc"]
    for folder in {*folders, tmp_path / "alone"}:
        folder.mkdir()

    def table(folder: Path) -> list[list[str]]:
        lines = [line.split(" | ") for line in (folder / "runs/reverse_sweep/table.md").read_text().splitlines()]
        seconds = lines[0].index("seconds", 3)
        return [line[:seconds] + line[seconds + 1 :] for line in lines]

    chance = random.Random(str(shared))
    commands = [started(*words, "--study", study, folder=folder) for folder in folders]
    for victim, done in ((0, 2), (1, 5)):
        while len([*tmp_path.rglob("results.json")]) < done:
            time.sleep(0.1)
            assert commands[victim].poll() is None, commands[victim].communicate()
        time.sleep(chance.uniform(0, 3))
        commands[victim].kill()
        commands[victim].wait()
    commands[0] = started(*words, "--study", study, folder=folders[0])
    for command in (commands[0], commands[2]):
        out, err = command.communicate(timeout=400)
        assert command.returncode == 0, (out, err)
    (name,) = optuna.get_all_study_names(trials.storage(study))
    found = optuna.load_study(study_name=name, storage=trials.storage(study)).get_trials(states=[trials.COMPLETE])
    assert (len(found), len({tuple(trial.params.items()) for trial in found})) == (12, 12)
    assert started(*words, "--jobs", "2", folder=tmp_path / "alone").wait(400) == 0
    assert table(folders[0]) == table(folders[2]) == table(tmp_path / "alone")
