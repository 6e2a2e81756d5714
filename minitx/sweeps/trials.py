"""The trials of a sweep: an Optuna study in a journal file or a database, which several processes may share. No torch.

A run is queued as a trial with its number, and as another one if it is lost, with the settings, rows and validations of
the lost one. A running trial renews its heartbeat, an attribute, because journals have none of Optuna's; it fails when
that is stale. The queue is not locked: if two processes queue the same run, the later trial fails before its start, or
is replaced if the earlier one is lost.
"""

import re
import statistics
import time
import warnings
import zlib
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError, TrialPruned, UpdateFinishedTrialError
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from minitx.config.errors import ConfigError, RunFailed, first_line
from minitx.sweeps.grid import Range, Settings
from minitx.sweeps.plan import SEED, Plan
from minitx.sweeps.tables import Row

HEARTBEAT_SECONDS, STALE_SECONDS = 15.0, 90.0  # between two heartbeats, and until the last one is stale

RUN, REPEATS, HEARTBEAT, ROWS, ERROR = "run", "repeats", "heartbeat", "rows", "error"  # attributes of trials
RUNNING, WAITING, COMPLETE = TrialState.RUNNING, TrialState.WAITING, TrialState.COMPLETE
PRUNED, FAIL = TrialState.PRUNED, TrialState.FAIL


class _JournalLock(JournalFileOpenLock):
    """Removes the last line of a journal if it is incomplete, because its process was killed."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self.file = file

    def acquire(self) -> bool:
        acquired = super().acquire()
        with self.file.open("rb+") as file:
            if file.seek(0, 2) and file.seek(-1, 2) >= 0 and file.read(1) != b"\n":
                file.truncate(self.file.read_bytes().rfind(b"\n") + 1)
        return acquired


class _Journal(JournalFileBackend):
    """Reports a failed write, such as on a full disk, as a RunFailed."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        try:
            super().append_logs(logs)
        except FileNotFoundError:  # it was removed
            raise
        except OSError as error:
            reason = f"{self._file_path} cannot be written ({error.strerror})"
            raise RunFailed(f"{reason}: the same command resumes the sweep") from None


def storage(place: str) -> BaseStorage:
    """Open a database by its URL, or a journal file; a ConfigError if it is neither."""
    try:
        if "://" in place:
            for pause in (0.2, 0.5):
                with suppress(DatabaseError):  # such as another process that creates the same table
                    return RDBStorage(place)
                time.sleep(pause)
            return RDBStorage(place)
        file = Path(place)
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not file.is_file():
            raise ValueError("it is not a file")  # reading a device may not end
        with file.open("ab"):  # checked before the first trial writes to it
            pass
        if file.stat().st_size and b'"op_code"' not in file.open("rb").readline():
            raise ValueError("its first line is not that of a journal")  # before anything is appended
        return JournalStorage(_Journal(place, _JournalLock(file)))
    except (OptunaError, SQLAlchemyError, ImportError, ValueError, OSError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
        expected = "a journal file of Optuna or the URL of a database"
        raise ConfigError(f"--study must be {expected}, got {without_password(place)} ({reason})") from None


def without_password(place: str) -> str:
    """A journal file or a database's URL, as it is printed."""
    return re.sub(r"(://[^:/]*:).*(?=@)|(passw\w*=)[^&]*", r"\1\2***", place)


class ClaimedTrial:
    """A trial that runs in a process of this command."""

    def __init__(self, trial: optuna.Trial, plan: Plan) -> None:
        self.trial, self.plan = trial, plan
        self.settings: Settings = {key: _suggested(trial, key, values) for key, values in plan.space.items()}
        self.seeds = [trial.suggest_categorical(SEED, [*plan.seeds])] if plan.points else [*plan.seeds]
        self.rows: list[Row] = [*trial.user_attrs[ROWS]]  # of the first seeds
        self.renew()

    @property
    def log(self) -> Path:
        """The file for the output of the trial's process."""
        return Path(f"{self.plan.run_folder(self.settings, self.seeds[0])}.log")

    def renew(self) -> bool:
        """Renew the heartbeat; False if it was stale, and another process repeats the run."""
        with suppress(UpdateFinishedTrialError):
            self.trial.set_user_attr(HEARTBEAT, time.time())
            return True
        return False

    def add(self, row: Row) -> None:
        """Record the row of the next seed."""
        self.rows.append(row)
        self.trial.set_user_attr(ROWS, self.rows)

    def report(self, step: int, score: float, steps: int) -> None:
        """Record the score of a validation; a TrialPruned if the sweep prunes and other trials are better at that step.

        No trial is pruned in the first quarter of its `steps`.
        """
        with warnings.catch_warnings(action="ignore"):  # of a step that the lost trial reported
            self.trial.report(score, step)
        if self.plan.search.prune and step >= steps // 4 and self.trial.should_prune():
            raise TrialPruned

    def end(self, state: TrialState, error: str | None = None) -> None:
        """End the trial: complete, pruned, failed, or to be repeated, which is a failure without an error."""
        with suppress(UpdateFinishedTrialError):  # its heartbeat was stale
            if error is not None:
                self.trial.set_user_attr(ERROR, f"{error} (see {self.log})")
            score = statistics.fmean(row["score"] for row in self.rows) if state == COMPLETE else None
            self.trial.study.tell(self.trial, score, state, skip_if_finished=True)


def _suggested(trial: optuna.Trial, key: str, values: list[str] | Range) -> str:
    if not isinstance(values, Range):
        return str(trial.suggest_categorical(key, values))
    decade = 0 < 10 * Decimal(values.low) <= Decimal(values.high)  # as floats, 10 * 3e-5 > 3e-4
    if all(re.fullmatch(r"[+-]?\d+", end) for end in values):
        return str(trial.suggest_int(key, int(values.low), int(values.high), log=decade))
    low, high = float(values.low), float(values.high)
    value = trial.suggest_float(key, low, high, log=decade)
    text = f"{value:.4g}"  # which may be rounded out of the range
    return text if low <= float(text) <= high else repr(value)


class Trials:
    """The trials of a plan."""

    def __init__(self, plan: Plan, place: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.plan, self.place = plan, without_password(place)
        self.study = optuna.create_study(
            storage=storage(place), study_name=plan.study, direction="maximize", load_if_exists=True
        )
        self.heartbeats: dict[int, tuple[float | None, float]] = {}
        """The latest heartbeat of each running trial, and when it was first read."""
        self.retry_after: set[int] = set()
        """The trials that ran at retry_failed, without those that are lost."""

    @property
    def runs(self) -> list[FrozenTrial | None]:
        """The attempt that counts for each run: the first one without a failure, else the last one that was started."""
        runs: list[FrozenTrial | None] = [None] * self.plan.trials
        for trial in self.study.get_trials(deepcopy=False):
            run = trial.user_attrs.get(RUN, len(runs))
            if trial.state == FAIL and not trial.params:
                continue  # another trial had this run
            if run < len(runs) and ((before := runs[run]) is None or before.state == FAIL):
                runs[run] = trial
        return runs

    def ended(self) -> int:
        """The number of runs that need no further attempt."""
        return sum(each.state in (COMPLETE, PRUNED) or ERROR in each.user_attrs for each in self.runs if each)

    def retry_failed(self) -> None:
        """Queue another attempt at each failed run: now, or once all trials that are running have been lost."""
        self.retry_after = {trial.number for trial in self.study.get_trials(deepcopy=False, states=(RUNNING,))}
        self._queue(failed=not self.retry_after)

    def claim(self) -> ClaimedTrial | None:
        """Start the next trial; None if there is none to start now."""
        self._fail_stale()
        self._queue()
        while self.study.get_trials(deepcopy=False, states=(WAITING,)):
            trial = self.study.ask()
            if trial.number in [each.number for each in self.runs if each]:
                run = trial.user_attrs[RUN]
                failed = reversed(self.study.get_trials(deepcopy=False, states=(FAIL,)))  # also those that never ran
                lost = next((each for each in failed if each.params and each.user_attrs.get(RUN) == run), None)
                if lost is None or lost.number == trial.user_attrs.get(REPEATS):
                    # Seeded by the run, so that a random search has the same settings whichever process asks.
                    seed = zlib.crc32(f"{self.plan.study} {run}".encode())
                    tpe = self.plan.search.name == "tpe"
                    self.study.sampler = TPESampler(seed=seed) if tpe else RandomSampler(seed)
                    for step, score in (lost.intermediate_values if lost else {}).items():
                        trial.report(score, step)
                    return ClaimedTrial(trial, self.plan)
                if ERROR not in lost.user_attrs:  # this trial was queued before the other one was lost
                    self._enqueue(run, lost)
            self.study.tell(trial, state=FAIL)  # another trial has this run
        return None

    def _queue(self, failed: bool = False) -> None:
        """Queue the runs that are new or lost, and if `failed` those that ended with an error."""
        for run, attempt in enumerate(self.runs):
            if attempt is None or (attempt.state == FAIL and (failed or ERROR not in attempt.user_attrs)):
                self._enqueue(run, attempt)

    def _enqueue(self, run: int, lost: FrozenTrial | None) -> None:
        """Queue a run, with the parameters and rows of its lost attempt if there is one."""
        params: dict[str, Any] = self.plan.points[run] if self.plan.points else {}
        attributes: dict[str, Any] = {RUN: run, ROWS: []}
        if lost:
            params = params or lost.params
            attributes |= {REPEATS: lost.number, ROWS: lost.user_attrs.get(ROWS, [])}
        self.study.enqueue_trial(params, attributes)

    def _fail_stale(self) -> None:
        """Fail trials whose heartbeat has not changed for STALE_SECONDS on this machine's clock."""
        now = time.monotonic()
        for trial in self.study.get_trials(deepcopy=False, states=(RUNNING,)):
            beat = trial.user_attrs.get(HEARTBEAT)
            if self.heartbeats.setdefault(trial.number, (beat, now))[0] != beat:
                self.heartbeats[trial.number] = beat, now
            elif now - self.heartbeats[trial.number][1] > STALE_SECONDS:
                with suppress(UpdateFinishedTrialError):
                    self.study.tell(trial.number, state=FAIL, skip_if_finished=True)
                if trial.number in self.retry_after:
                    self.retry_after.remove(trial.number)
                    self._queue(failed=not self.retry_after)
