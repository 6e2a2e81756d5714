"""Processes of a sweep: cores and GPUs are shared."""

import os

import pytest

from minitx.sweeps.processes import environments


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
