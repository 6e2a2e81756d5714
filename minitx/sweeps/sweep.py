"""A sweep from its plan to its tables: finished runs are kept, and a failed run does not stop the others."""

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from minitx.config.errors import ConfigError, RunFailed
from minitx.config.schema import config_from_dict
from minitx.data.text.work_progress import progress
from minitx.plotting.curves import Curve, accuracy_by_length
from minitx.sweeps import grid, tables
from minitx.sweeps.plan import Plan
from minitx.sweeps.processes import environments, start, stop
from minitx.sweeps.trials import COMPLETE, ERROR, FAIL, HEARTBEAT_SECONDS, PRUNED, ROWS, ClaimedTrial, Trials
from minitx.training.folder import print_line, refuse_unwritable

POLL_SECONDS = 1.0  # between two reads of the study


def sweep(
    plan: Plan, jobs: int = 1, out: Path | None = None, study: str | None = None
) -> tuple[list[tables.Row], list[str]]:
    """Execute a plan, resume it, or join other processes that execute it: finished trials are not repeated.

    Up to `jobs` runs are parallel, each in its own process. Tables and plot are written to `out`, by default the
    sweep's own folder, and the trials to `study`, a journal file or the URL of a database, by default in that folder.
    Returns the rows in the plan's order, and a sentence for each trial that failed. SIGTERM and SIGHUP exit with code
    128 + n once the running processes have saved; Ctrl-C raises KeyboardInterrupt.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {jobs}")
    with refuse_unwritable(plan.folder):
        plan.folder.mkdir(parents=True, exist_ok=True)
    study = study or str(plan.folder / "study.journal")
    trials = Trials(plan, study)
    trials.retry_failed()
    total, finished = plan.trials, trials.ended()
    note = f", {finished} of them finished before" if finished else ""
    print_line(f"{plan.folder}: {total} trials{note}; each trial has a .log")
    print_line(f"{trials.place}: study {plan.study}")
    handled = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handled = [number for number in handled if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, lambda number, frame: sys.exit(128 + number)) for number in handled}
    try:
        on_cpu = config_from_dict(plan.values).trainer.accelerator == "cpu"
        devices = environments(min(jobs, max(total - finished, 1)), 0 if on_cpu else torch.cuda.device_count())
        for _ in progress(_work(trials, devices), "sweep", int, total - finished, " trials"):
            pass
    except (KeyboardInterrupt, SystemExit):
        print_line("stopped; the same command resumes the sweep")
        raise
    except FileNotFoundError as error:
        if not str(error.filename).startswith(study):
            raise
        raise RunFailed(f"{study} was removed during the sweep: repeat the command to restart it") from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    last = [trial for trial in trials.runs if trial]
    rows = [row for trial in last if trial.state == COMPLETE for row in trial.user_attrs[ROWS]]
    if pruned := [grid.described(trial.params) for trial in last if trial.state == PRUNED]:
        print_line("\n".join([f"{len(pruned)} pruned:", *pruned]))
    if rows:
        _report(plan, tables.lines(rows, plan.lengths), out or plan.folder)
    return rows, [f"{grid.described(each.params)}: {each.user_attrs[ERROR]}" for each in last if each.state == FAIL]


def _work(trials: Trials, free: list[dict[str, str]]) -> Iterator[int]:
    """Start processes on trials until all have ended; yields how many have ended since the last yield, in any process.

    `free` has the environment variables of each process that may run at the same time.
    """
    running: list[tuple[ClaimedTrial, BaseProcess, dict[str, str]]] = []
    ended, renewed = trials.ended(), time.monotonic()
    try:
        while ended < trials.plan.trials:
            while free and (claimed := trials.claim()) is not None:
                running.append((claimed, start(claimed, free[0]), free.pop(0)))
            if running:
                wait([process.sentinel for _, process, _ in running], POLL_SECONDS)
            else:
                time.sleep(POLL_SECONDS)  # the last trials run elsewhere
            due = time.monotonic() - renewed > HEARTBEAT_SECONDS
            renewed = time.monotonic() if due else renewed
            for claimed, process, environment in [*running]:
                if process.is_alive() and (not due or claimed.renew()):
                    continue
                stop([process])
                claimed.end(FAIL, f"its process exited with {process.exitcode}")
                running.remove((claimed, process, environment))
                free.append(environment)
            before, ended = ended, trials.ended()
            yield ended - before
    finally:
        stop((process for _, process, _ in running), isinstance(sys.exception(), KeyboardInterrupt))
        for claimed, _, _ in running:
            claimed.end(FAIL)


def _report(plan: Plan, table: Sequence[tables.Line], out: Path) -> None:
    """Write the tables and the plot, and print the table and the paths."""
    lengths = out / "lengths.csv"
    replaced = lengths.is_file() and b"length,seeds," in lengths.open("rb").readline()  # else they are the user's own
    files = tables.write(out, [*plan.space], table, plan.trained)
    curves = [
        Curve(", ".join(line.settings.values()) or plan.name, [*line.by_length], shares)
        for line in table
        if (shares := [part["exact_match"] for part in line.by_length.values()])
    ]
    if curves:
        title = f"{plan.name}: exact match by length"
        files.append(accuracy_by_length(out / "lengths.png", curves, title, plan.trained, " and ".join(plan.space)))
    for file in {lengths, out / "lengths.png"}.difference(files) if replaced else ():
        file.unlink(missing_ok=True)  # of an earlier sweep
    print_line(f"\n{tables.markdown([*plan.space], table, plan.trained)}\n{'  '.join(map(str, files))}")
