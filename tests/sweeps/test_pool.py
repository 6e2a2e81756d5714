"""Worker processes: everybody is answered, the dead are replaced, and stopping stops all."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from minitx.sweeps.pool import Pool, environments

ECHO = "tests.sweeps.echo_worker"
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("at_root")


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def run(jobs: list[dict[str, Any]], envs: list[dict[str, str]]) -> dict[int, dict[str, Any]]:
    return {job["n"]: answer for job, answer in Pool(envs, ECHO).run(jobs)}


def test_every_job_is_answered_by_as_many_processes_as_there_are_environments() -> None:
    answers = run([{"n": n} for n in range(6)], [{"OMP_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "3"}])
    assert {answer["row"]["n"] for answer in answers.values()} == set(range(6))
    assert {answer["row"]["threads"] for answer in answers.values()} == {"3"}
    assert 1 <= len({answer["row"]["pid"] for answer in answers.values()}) <= 2


def test_one_that_dies_takes_only_its_own_job_with_it() -> None:
    answers = run([{"n": 0}, {"n": 1, "die": True}, {"n": 2}], [{}])
    assert answers[1] == {"error": "its process ended with code 7"}
    assert answers[0]["row"]["pid"] != answers[2]["row"]["pid"]


def test_nothing_to_do() -> None:
    assert run([], [{}]) == {}


def test_whoever_stops_asking_stops_all_and_they_may_save_first(tmp_path: Path) -> None:
    jobs = [
        {"n": 0, "wait": True, "started": str(tmp_path / "started"), "saved": str(tmp_path / "saved")},
        {"n": 1},
        {"n": 2},
    ]
    pool = Pool([{}, {}], ECHO)
    answers = pool.run(jobs)
    next(answers)
    while not (tmp_path / "started").exists():
        time.sleep(0.02)
    with pytest.raises(KeyboardInterrupt):
        answers.throw(KeyboardInterrupt)
    assert (tmp_path / "saved").read_text() == "saved"
    for process in pool._processes.values():
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def test_workers_share_cores_and_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert environments(1, 0) == [{}]
    assert environments(3, 0) == [{"OMP_NUM_THREADS": "2"}] * 3
    assert environments(20, 0)[0] == {"OMP_NUM_THREADS": "1"}
    assert [part["CUDA_VISIBLE_DEVICES"] for part in environments(3, 2)] == ["0", "1", "0"]
    assert environments(1, 4) == [{"CUDA_VISIBLE_DEVICES": "0"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [part["CUDA_VISIBLE_DEVICES"] for part in environments(2, 2)] == ["5", "7"]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert environments(2, 0) == [{}, {}], "somebody has decided already"
