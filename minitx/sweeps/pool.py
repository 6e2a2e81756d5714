"""Worker processes, each with a job at a time: one that dies takes only its own job with it. No torch.

A worker is `python -m minitx.sweeps.worker`: a line of JSON in, a line of JSON out. It lives in a session of its own,
so that Ctrl-C on the terminal reaches this process alone, which then asks each worker once to save and stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import minitx

PATIENCE = 120.0
"""Seconds that a worker has to finish its step and save, once asked to stop."""

Job = dict[str, Any]
Answer = dict[str, Any]


def environments(jobs: int, gpus: int) -> list[dict[str, str]]:
    """What each worker's environment has more than ours: its GPU in turn, or its share of the cores.

    Args:
        jobs: number of workers.
        gpus: number of GPUs that this process sees; 0 for work on a CPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",") if visible else [str(number) for number in range(gpus)]
    if gpus:
        return [{"CUDA_VISIBLE_DEVICES": names[number % gpus]} for number in range(jobs)]
    if jobs == 1 or "OMP_NUM_THREADS" in os.environ:
        return [{} for _ in range(jobs)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [{"OMP_NUM_THREADS": str(max(1, cores // jobs))} for _ in range(jobs)]


class Pool:
    """Runs jobs in as many processes as there are environments.

    Args:
        environments: what each worker's environment has more than ours.
        module: what a worker runs.
    """

    def __init__(self, environments: list[dict[str, str]], module: str = "minitx.sweeps.worker") -> None:
        self._environments, self._module = environments, module
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Job, Answer]] = queue.SimpleQueue()
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._stopping = False
        self._lock = threading.Lock()  # no worker starts while the others are being stopped

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Answer]]:
        """Each job with its worker's answer, as they finish; {"error": sentence} for one whose process ended.

        Whatever ends the iteration early (Ctrl-C, an exception, nobody asking any more) stops all workers.
        """
        jobs = list(jobs)
        for job in jobs:
            self._jobs.put(job)
        threads = [threading.Thread(target=self._serve, args=(number,)) for number in range(len(self._environments))]
        for thread in threads:
            thread.start()
        try:
            for _ in jobs:
                yield self._answers.get()
        finally:
            self._stop()
            for thread in threads:
                thread.join()

    def _serve(self, number: int) -> None:
        """Hand jobs to one worker after another; a new process after one has died."""
        while not self._stopping:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            with self._lock:
                if self._stopping:
                    return
                process = self._processes.get(number)
                if process is None or process.poll() is not None:
                    process = self._processes[number] = self._start(number)
            self._answers.put((job, _ask(process, job)))

    def _start(self, number: int) -> subprocess.Popen[str]:
        ours = str(Path(minitx.__file__).parents[1])  # found by a worker as by us, wherever that is
        paths = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
        return subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, **self._environments[number]},
            start_new_session=True,
        )

    def _stop(self) -> None:
        """Ask every worker once to stop; those that do not, or a second Ctrl-C, end the hard way."""
        with self._lock:
            self._stopping = True
        busy = [process for process in self._processes.values() if process.poll() is None]
        for process in busy:
            process.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in busy:
                    process.wait(PATIENCE)
        finally:
            for process in busy:
                process.kill()


def _ask(process: subprocess.Popen[str], job: Job) -> Answer:
    """A worker's answer to a job, or what became of the worker."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(job), file=process.stdin, flush=True)
    if line := process.stdout.readline():
        answer: Answer = json.loads(line)
        return answer
    return {"error": f"its process ended with code {process.wait()}"}
