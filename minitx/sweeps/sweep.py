"""A sweep from its plan to its tables: finished runs are kept, and a failed run does not stop the others."""

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from minitx.config.errors import ConfigError
from minitx.plotting.curves import Curve, accuracy_by_length
from minitx.sweeps import grid, rows, tables
from minitx.sweeps.plan import Plan
from minitx.sweeps.pool import environments, run_jobs
from minitx.training.folder import print_line


def sweep(plan: Plan, jobs: int = 1, out: Path | None = None) -> tuple[list[rows.Row], list[str]]:
    """Execute a plan, or resume it: runs whose row is recorded are not repeated.

    As many runs as `jobs` are parallel, each in its own process; the tables and the plot land in `out`, by default the
    sweep's own folder. Returns the recorded rows in the plan's order, and a sentence for each run that failed. SIGTERM
    and SIGHUP exit with code 128 + n once the running processes have saved; Ctrl-C stays a KeyboardInterrupt.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {jobs}")
    file, total = plan.folder / "rows.jsonl", len(plan.jobs)
    recorded = rows.read(file)
    todo = [job for job in plan.jobs if rows.latest(recorded, job["fingerprint"], plan.lengths) is None]
    finished = total - len(todo)
    note = f", {finished} of them finished before" if finished else ""
    print_line(f"{plan.folder}: {total} runs{note}; each has a .log beside it")
    failed: list[str] = []
    began = time.perf_counter()
    stops = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, lambda number, frame: sys.exit(128 + number)) for number in stops}
    try:
        on_cpu = all(job["config"]["trainer"]["accelerator"] == "cpu" for job in plan.jobs)
        processes = environments(min(jobs, max(len(todo), 1)), 0 if on_cpu else torch.cuda.device_count())
        for done, (job, answer) in enumerate(run_jobs(todo, processes), start=1):
            if "row" in answer:
                rows.append(file, answer["row"])
            else:
                name = f"{grid.described(job['settings'])}, seed {job['seed']}"
                failed.append(f"{name}: {answer['error']} (see {job['log']})")
            _show_progress(finished + done, total, (time.perf_counter() - began) / done)
    except (KeyboardInterrupt, SystemExit):
        print_line("stopped; the same command resumes the sweep")
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    recorded = rows.read(file)
    found = [rows.latest(recorded, job["fingerprint"], plan.lengths) for job in plan.jobs]
    available = [row for row in found if row is not None]
    if available:
        _report(plan, tables.lines(available, plan.lengths), out or plan.folder)
    return available, failed


def _report(plan: Plan, table: Sequence[tables.Line], out: Path) -> None:
    """Write the tables and the plot, and print the table and the paths."""
    files = tables.write(out, plan.keys, table, plan.trained)
    curves = []
    for line in table:
        shares = [part["exact_match"].values for part in line.by_length.values()]
        if shares:
            curves.append(Curve(", ".join(line.settings.values()) or plan.name, [*line.by_length], shares))
    if curves:
        title = f"{plan.name}: exact match by length"
        files.append(accuracy_by_length(out / "lengths.png", curves, title, plan.trained, " and ".join(plan.keys)))
    print_line(f"\n{tables.markdown(plan.keys, table, plan.trained)}\n{'  '.join(map(str, files))}")


def _show_progress(done: int, total: int, seconds_per_run: float) -> None:
    """Print the progress and the time left, on a terminal in place."""
    left, in_place = total - done, sys.stdout.isatty()
    line = f"{done} of {total} runs" + (f", {format_seconds(seconds_per_run * left)} left" if left else "")
    print_line(f"\033[2K{line}" if in_place else line, end="\r" if in_place and left else "\n")


def format_seconds(seconds: float) -> str:
    """A duration: 40 s, 4 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
