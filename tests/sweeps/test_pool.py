"""Processes of a sweep: each job has an answer and a log, a death fails one job, and an interrupt stops all."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minitx.sweeps.pool import environments, run_jobs


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def started(jobs: list[dict[str, Any]], envs: list[dict[str, str]], folder: Path) -> Iterator[Any]:
    numbered = [{"n": n, "log": str(folder / f"logs/{n}.log"), **job} for n, job in enumerate(jobs)]
    return run_jobs(numbered, envs, "tests.sweeps.echo_worker")


def test_every_job_has_an_answer_and_a_log_and_a_death_fails_one_job(tmp_path: Path) -> None:
    jobs: list[dict[str, Any]] = [{}, {"die": True}, {}, {"log": str(tmp_path)}]
    answers = {job["n"]: answer for job, answer in started(jobs, [{"OMP_NUM_THREADS": "3"}] * 2, tmp_path)}
    assert answers[1] == {"error": "its process exited with 7"}
    assert answers[3]["error"].startswith("IsADirectoryError")
    assert [(answers[n]["row"]["n"], answers[n]["row"]["threads"]) for n in (0, 2)] == [(0, "3"), (2, "3")]
    assert [(tmp_path / f"logs/{n}.log").read_text() for n in range(3)] == ["job 0\n", "job 1\n", "job 2\n"]
    assert not [*started([], [{}], tmp_path)]


def test_an_interrupt_stops_all_processes_after_they_have_saved(tmp_path: Path) -> None:
    running, saved = tmp_path / "started", tmp_path / "saved"
    answers = started([{"wait": True, "started": str(running), "saved": str(saved)}, {}, {}], [{}, {}], tmp_path)
    next(answers)
    while not running.exists() or not running.read_text():
        time.sleep(0.02)
    with pytest.raises(KeyboardInterrupt):
        answers.throw(KeyboardInterrupt)
    assert saved.read_text() == "saved"
    with pytest.raises(ProcessLookupError):
        os.kill(int(running.read_text()), 0)


def test_processes_share_cores_and_use_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert environments(1, 0) == [{}]
    assert environments(3, 0) == [{"OMP_NUM_THREADS": "2"}] * 3
    assert environments(20, 0)[0] == {"OMP_NUM_THREADS": "1"}
    assert [part["CUDA_VISIBLE_DEVICES"] for part in environments(3, 2)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [part["CUDA_VISIBLE_DEVICES"] for part in environments(2, 2)] == ["5", "7"]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert environments(2, 0) == [{}, {}], "a value of the user is kept"
