"""A process for each trial of a sweep: one that is killed fails only its own trial. No torch.

Its output is appended to a log. It has its own session, so Ctrl-C in a terminal reaches the parent only, which sends
SIGTERM to each process once; a process whose parent was killed ends itself in the same way.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from multiprocessing.process import BaseProcess
from typing import Any

STOP_SECONDS = 60.0  # time for a process to finish its step and save after SIGTERM


def start(trial: Any, environment: Mapping[str, str]) -> BaseProcess:
    """Start the process of a trial (trials.ClaimedTrial), with additional environment variables."""
    trial.log.parent.mkdir(parents=True, exist_ok=True)
    process = multiprocessing.get_context("spawn").Process(target=_main, args=(trial,))
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        process.start()
    finally:
        for name in environment:
            os.environ.pop(name)
        os.environ.update(before)
    return process


def stop(processes: Iterable[BaseProcess], interrupted: bool = False) -> None:
    """Terminate processes; kill those that exceed the time limit, or all on a second Ctrl-C."""
    processes = [*processes]
    for process in processes:
        if hasattr(os, "setsid") or not interrupted:  # on Windows they have received the Ctrl-C too, and save
            process.terminate()
    try:
        for process in processes:
            process.join(STOP_SECONDS)
    finally:
        for process in processes:
            process.kill()


def environments(jobs: int, gpus: int) -> list[dict[str, str]]:
    """Environment variables of each of `jobs` parallel processes: one of the GPUs in turn, or a share of the CPU cores.

    `gpus` is the number of GPUs visible to this process; 0 for runs on a CPU.
    """
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(number) for number in range(gpus)]
        return [{"CUDA_VISIBLE_DEVICES": names[number % gpus]} for number in range(jobs)]
    if jobs == 1 or "OMP_NUM_THREADS" in os.environ:
        return [{}] * jobs
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [{"OMP_NUM_THREADS": str(max(1, cores // jobs))}] * jobs


def _main(trial: Any) -> None:
    if hasattr(os, "setsid"):
        os.setsid()
    with trial.log.open("a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from minitx.sweeps.worker import work

    work(trial)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
