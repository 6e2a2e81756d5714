"""Choices between several ways to compute the same, by measurements on this machine that its runs share."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from minitx.checkpoints.atomic_files import written_whole
from minitx.config.errors import ConfigError
from minitx.hardware.machine import cache_folder, machine

MIN_GAIN = 1.05
"""How much faster another candidate must be to replace the current choice: less is within the noise."""
AGREEING_MEASUREMENTS = 3
"""Measurements in a row that must select the same candidate, one per run, before runs stop measuring."""
MAX_SECONDS = 0.5
"""Duration of a race by default, after a first turn of each candidate."""
MIN_TURNS = 2
MAX_RATIO = 2.0
"""A candidate whose shortest duration is more than MAX_RATIO times that of the fastest takes no further turns."""
MIN_CPU_SHARE = 0.9
"""Minimum share of its time that a thread computes on a machine without other work."""

Seconds = dict[str, float]
"""Duration of each candidate."""


def decide(subject: Sequence[Any], candidates: Sequence[str], measure: Callable[[], Seconds]) -> tuple[str, Seconds]:
    """Choose the fastest candidate, and return the durations of all of them too.

    Other programs make a duration longer, never shorter. So the shortest of all measurements counts, and a choice made
    on a busy machine is corrected by later runs. The current choice, at first candidates[0], changes only for a
    candidate that is faster by MIN_GAIN.

    Args:
        subject: what the candidates compute, as JSON types. Measurements are kept for each subject, device and version
            of torch, in the cache folder.
        candidates: names, the default first.
        measure: returns the durations of all candidates. Its exceptions are raised, and nothing is kept.
    """
    hardware = machine()
    key = json.dumps([hardware["device"], hardware["torch"], candidates, subject], sort_keys=True, default=str)
    name = f"races/{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    chosen, agreeing, seconds = candidates[0], 0, dict.fromkeys(candidates, float("inf"))
    with suppress(OSError, ValueError, KeyError, TypeError):  # missing, or damaged; a ConfigError is a ValueError
        record = json.loads((cache_folder() / name).read_bytes())
        kept = {name: float(record["seconds"][name]) for name in candidates}
        chosen, agreeing, seconds = candidates[candidates.index(record["chosen"])], int(record["agreeing"]), kept
    if agreeing >= AGREEING_MEASUREMENTS:
        return chosen, seconds
    measured = measure()
    seconds = {name: min(seconds[name], measured[name]) for name in candidates}
    before, chosen = chosen, _fastest(seconds, chosen)
    agreeing = agreeing + 1 if chosen == before else 1
    if _fastest(measured, before) != chosen:
        agreeing = 0
    record = {"chosen": chosen, "agreeing": agreeing, "seconds": seconds}
    # If it cannot be written, the next run measures again.
    with suppress(OSError, ConfigError), written_whole(cache_folder() / name) as stream:
        stream.write(json.dumps(record).encode())
    return chosen, seconds


def _fastest(seconds: Seconds, current: str) -> str:
    """The fastest candidate, or the current one unless that is slower by MIN_GAIN."""
    best = min(seconds, key=seconds.__getitem__)
    return best if MIN_GAIN * seconds[best] <= seconds[current] else current


def race(racers: Mapping[str, Callable[[], Any]], max_seconds: float = MAX_SECONDS) -> Seconds:
    """The shortest duration of each; if other programs use the processor, CPU time of one thread instead.

    On a busy machine threads wait for one another: neither wall-clock time nor CPU time can rank candidates.
    """
    started = time.perf_counter(), time.thread_time()
    for run in racers.values():
        run()
    if _undisturbed(*started):
        seconds = _race(racers, time.perf_counter, max_seconds)
        if _undisturbed(*started):
            return seconds
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _race(racers, time.thread_time, max_seconds)
    finally:
        torch.set_num_threads(threads)


def _undisturbed(wall: float, cpu: float) -> bool:
    """Whether this thread has computed nearly all the time since the two clocks were read."""
    return time.thread_time() - cpu >= MIN_CPU_SHARE * (time.perf_counter() - wall)


def _race(racers: Mapping[str, Callable[[], Any]], clock: Callable[[], float], max_seconds: float) -> Seconds:
    """The shortest duration of each by a clock. They take turns, so that other programs disturb all of them."""
    best = dict.fromkeys(racers, float("inf"))
    turns, started = 0, clock()
    while turns < MIN_TURNS or clock() - started < max_seconds:
        for name, run in racers.items():
            if turns >= MIN_TURNS and best[name] > MAX_RATIO * min(best.values()):
                continue
            before = clock()
            run()
            best[name] = min(best[name], clock() - before)
        turns += 1
    return best
