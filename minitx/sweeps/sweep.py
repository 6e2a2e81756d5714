"""A sweep from its plan to its table: what is there already is not done again, what fails does not stop the others."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minitx.config.errors import ConfigError
from minitx.plotting.curves import Curve, accuracy_by_length
from minitx.sweeps import grid, rows, tables
from minitx.sweeps.plan import Plan, devices
from minitx.sweeps.pool import Pool, environments
from minitx.sweeps.tables import Line


def sweep(plan: Plan, jobs: int = 1, out: Path | None = None) -> tuple[list[rows.Row], list[str]]:
    """Carry out a plan. Called again, it goes on where it was interrupted.

    Args:
        plan: of all runs.
        jobs: runs at a time, each in a process of its own.
        out: folder of the table and the picture; default: the sweep's own.

    Returns:
        The rows of all runs that are there, in the plan's order, and a sentence for each that failed.

    Raises:
        ConfigError: jobs below 1.
        SystemExit: 143 after SIGTERM, once the running ones have saved; Ctrl-C stays a KeyboardInterrupt.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {jobs}")
    file = plan.folder / "rows.jsonl"
    known = rows.read(file)
    todo = [point for point in plan.points if rows.latest(known, point.fingerprint, plan.lengths) is None]
    total = len(plan.points)
    there = f", {total - len(todo)} of them done before" if len(todo) < total else ""
    print(f"{plan.folder}: {total} runs{there}; each has a .log beside it", flush=True)
    progress = Progress(total, total - len(todo))
    failed: list[str] = []
    pool = Pool(environments(min(jobs, max(len(todo), 1)), devices(plan)))
    try:
        with _sigterm_as_exit():
            for job, answer in pool.run(point.job(plan.lengths) for point in todo):
                if "row" in answer:
                    rows.append(file, answer["row"])
                else:
                    name = f"{grid.described(job['settings'])}, seed {job['seed']}"
                    failed.append(f"{name}: {answer['error']} (see {job['log']})")
                progress.tell()
    except (KeyboardInterrupt, SystemExit):
        print("stopped; the same command goes on", flush=True)
        raise
    known = rows.read(file)
    found = [rows.latest(known, point.fingerprint, plan.lengths) for point in plan.points]
    there_now = [row for row in found if row is not None]
    if there_now:
        _report(plan, tables.lines(there_now, plan.lengths), out or plan.folder)
    return there_now, failed


def _report(plan: Plan, table: Sequence[Line], out: Path) -> None:
    """Write the table and the picture, and say where they are."""
    files = tables.write(out, plan.keys, table, plan.trained)
    curves = [
        Curve(
            ", ".join(line.settings.values()) or plan.name,
            list(line.by_length),
            [part["exact_match"].values for part in line.by_length.values()],
        )
        for line in table
        if line.by_length
    ]
    if curves:
        title = f"{plan.name}: exact match by length"
        files.append(accuracy_by_length(out / "lengths.png", curves, title, plan.trained, " and ".join(plan.keys)))
    print(f"\n{tables.markdown(plan.keys, table, plan.trained)}\n{'  '.join(map(str, files))}", flush=True)


class Progress:
    """A line that tells how far a sweep is: rewritten in place on a terminal.

    Args:
        total: runs of the sweep.
        done: those that were there before.
    """

    def __init__(self, total: int, done: int) -> None:
        self._total, self._done, self._before = total, done, done
        self._began = time.perf_counter()
        self._in_place = sys.stdout.isatty()

    def tell(self) -> None:
        """One more has ended."""
        self._done += 1
        left = self._total - self._done
        seconds = (time.perf_counter() - self._began) / (self._done - self._before) * left
        line = f"{self._done} of {self._total} runs" + (f", {spelt(seconds)} left" if left else "")
        print(f"\033[2K{line}" if self._in_place else line, end="\r" if self._in_place and left else "\n", flush=True)


def spelt(seconds: float) -> str:
    """A time as people say it: 40 s, 4 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Within this block SIGTERM ends the process by SystemExit, so that whoever must tidy up can."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
