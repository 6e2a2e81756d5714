"""Run jobs in parallel, each in its own process: one that dies fails only its own job. No torch.

A process is `python -m minitx.sweeps.worker`: the job is JSON on standard input, the answer a line of JSON on standard
output, all other output is appended to the job's log. It has its own session, so Ctrl-C in a terminal reaches the
parent only, which sends SIGTERM to each running process once.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import minitx

STOP_SECONDS = 120.0  # time for a process to finish its step and save after SIGTERM

Job = dict[str, Any]
"""The input of a process, as plain JSON types; with the path of its "log"."""
Answer = dict[str, Any]


def environments(jobs: int, gpus: int) -> list[dict[str, str]]:
    """Environment variables of each of `jobs` parallel processes: one of the GPUs in turn, or a share of the CPU cores.

    `gpus` is the number of GPUs that this process sees; 0 for runs on a CPU.
    """
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(number) for number in range(gpus)]
        return [{"CUDA_VISIBLE_DEVICES": names[number % gpus]} for number in range(jobs)]
    if jobs == 1 or "OMP_NUM_THREADS" in os.environ:
        return [{}] * jobs
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [{"OMP_NUM_THREADS": str(max(1, cores // jobs))}] * jobs


def run_jobs(
    jobs: Iterable[Job], environments: list[dict[str, str]], module: str = "minitx.sweeps.worker"
) -> Iterator[tuple[Job, Answer]]:
    """Yield each job with its answer as they finish; {"error": sentence} for a process without an answer.

    There are as many parallel processes as `environments`, their additional environment variables. Ending the iteration
    early (Ctrl-C, an exception, a closed generator) stops them all.
    """
    free: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    for environment in environments:
        free.put(environment)
    processes: list[subprocess.Popen[str]] = []
    stopping, lock = threading.Event(), threading.Lock()  # no process starts while the others are stopped

    def answer(job: Job) -> Answer:
        environment = free.get()
        try:
            with lock:
                if stopping.is_set():
                    return {"error": "not started"}
                process = _start(module, environment, Path(job["log"]))
                processes.append(process)
            line, _ = process.communicate(json.dumps(job))
        except OSError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            free.put(environment)
        return json.loads(line) if line.endswith("\n") else {"error": f"its process exited with {process.returncode}"}

    with ThreadPoolExecutor(len(environments)) as threads:
        try:
            futures = {threads.submit(answer, job): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            with lock:
                stopping.set()
            _stop([process for process in processes if process.poll() is None])


def _start(module: str, environment: dict[str, str], log: Path) -> subprocess.Popen[str]:
    package = str(Path(minitx.__file__).parents[1])  # the worker imports the same copy of minitx
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": paths, **environment}
    command, pipe = [sys.executable, "-m", module], subprocess.PIPE
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=file, text=True, env=variables, start_new_session=True
        )


def _stop(processes: list[subprocess.Popen[str]]) -> None:
    """Terminate processes; kill those that exceed the time limit, or all on a second Ctrl-C."""
    for process in processes:
        process.terminate()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in processes:
                process.wait(STOP_SECONDS)
    finally:
        for process in processes:
            process.kill()
