"""Trials of a study that several processes share: each run has one result, whatever happens to the processes."""

import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.config.errors import ConfigError
from minitx.sweeps import grid, trials, worker
from minitx.sweeps.plan import GRID as SEARCH_GRID
from minitx.sweeps.plan import SEED, Plan, SearchOptions
from minitx.sweeps.trials import COMPLETE, FAIL, ClaimedTrial, Trials


def planned(*texts: str, search: SearchOptions = SEARCH_GRID, seeds: int = 1) -> Plan:
    space, numbers = grid.parse(texts), range(1, seeds + 1)
    settings = grid.combinations(space) if search.name == "grid" else []
    points: Any = [{**each, SEED: seed} for each in settings for seed in numbers]
    return Plan("run", "run-1", Path("runs"), {}, space, numbers, search, points)


GRID = planned("a=x,y", seeds=2)


def finish(claimed: ClaimedTrial) -> None:
    for seed in claimed.seeds[len(claimed.rows) :]:
        claimed.add({"settings": claimed.settings, "seed": seed, "score": 0.5})
    claimed.end(COMPLETE)


def results(process: Trials) -> list[tuple[Any, Any]]:
    """Settings and seeds of the runs' results; a run has one COMPLETE attempt, and nothing is left to do."""
    done = process.study.get_trials(states=[COMPLETE])
    assert len(done) == len({trial.user_attrs["run"] for trial in done}) == process.plan.trials == process.ended()
    assert not process.study.get_trials(states=[trials.RUNNING])
    rows = [trial.user_attrs["rows"] for trial in process.runs if trial]
    return [(part[0]["settings"], [row["seed"] for row in part]) for part in rows]


def test_a_trial_with_a_stale_heartbeat_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(trials.time, "monotonic", lambda: now[0])
    plan = planned("a=1..9", search=SearchOptions("tpe", 1), seeds=2)
    lost, other = (Trials(plan, str(tmp_path / "deep/study.journal")) for _ in range(2))
    killed = lost.claim()
    killed.add({"settings": killed.settings, "seed": 1, "score": 0.25})
    for seconds in (0, trials.STALE_SECONDS - 1, 1):
        now[0] += seconds
        assert (other.claim(), killed.renew()) == (None, True)
    now[0] += trials.STALE_SECONDS
    assert other.claim() is None, "the heartbeat was renewed"
    now[0] += trials.STALE_SECONDS + 1
    claimed = other.claim()
    assert (claimed.settings, claimed.rows) == (killed.settings, killed.rows), "with the seed that was finished"
    assert not killed.renew()
    killed.rows.append({"score": 9.0})
    killed.end(COMPLETE)
    finish(claimed)
    assert (results(other), other.study.best_value) == ([(claimed.settings, [1, 2])], 0.375), "the mean over seeds"


@settings(max_examples=8)
@given(st.integers(0, 2**32))
def test_each_run_has_one_result_whatever_happens(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Processes claim, finish and interrupt trials, are killed and replaced, or are slow to renew, in any order."""
    chance, now = random.Random(seed), [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials.time, "monotonic", lambda: now[0])
        place = str(tmp_path_factory.mktemp("study") / "study.journal")
        processes = [Trials(GRID, place) for _ in range(3)]
        working: list[ClaimedTrial] = []
        while processes[0].ended() < 4:
            now[0] += chance.choice([1, 1, 1, trials.STALE_SECONDS])
            action, process = chance.random(), chance.choice(processes)
            if action < 0.5 and len(working) < 3 and (claimed := process.claim()):
                working.append(claimed)
            elif working:
                claimed = working.pop(chance.randrange(len(working)))
                if action < 0.8:
                    finish(claimed) if claimed.renew() else None
                elif action < 0.9:
                    claimed.end(FAIL)
                else:  # its process is killed
                    processes[chance.randrange(3)] = Trials(GRID, place)
        assert results(processes[0]) == [({"a": "x"}, [1]), ({"a": "x"}, [2]), ({"a": "y"}, [1]), ({"a": "y"}, [2])]


@pytest.mark.parametrize("search", ["grid", "random", "tpe"])
def test_a_run_queued_twice_is_run_once_with_the_settings_of_its_first_attempt(search: Any, tmp_path: Path) -> None:
    grid = search == "grid"
    plan = planned("a=x" if grid else "a=1..9999", search=SearchOptions(search, None if grid else 1), seeds=2 - grid)
    one, two = (Trials(plan, str(tmp_path / "study.journal")) for _ in range(2))
    attempts = []
    for process, other in ((one, two), (two, one), (one, two)):
        for _ in range(3):
            process.study.enqueue_trial({}, {"run": 0, "rows": []})  # as by several processes at the same time
        claimed = process.claim()
        other.study.enqueue_trial({}, {"run": 0, "rows": []})  # by one that has not read of this attempt
        assert other.claim() is None
        attempts.append((claimed.settings, len(claimed.rows)))
        if not grid and not claimed.rows:
            claimed.add({"settings": claimed.settings, "seed": 1, "score": 0.5})
        claimed.end(FAIL)  # lost
    finish(one.claim())
    assert two.claim() is None
    ((settings, seeds),) = results(one)
    assert attempts == [(settings, 0), *[(settings, len(seeds) - 1)] * 2], "with the seed that was finished"


def test_failures_are_final_until_the_command_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Trials(planned("a=x,y,z"), str(tmp_path / "study.journal"))
    for _ in range(2):  # as by several processes at the same time
        process.study.enqueue_trial(process.plan.points[0], {"run": 0, "rows": []})
    process.claim().end(FAIL, "out of memory")
    other, _ = process.claim(), process.claim()  # the process of the second one is killed
    assert (process.claim(), process.ended()) == (None, 1)
    assert process.runs[0].user_attrs["error"] == "out of memory (see runs/a=x/seed1.log)"
    process.retry_failed()
    assert process.claim() is None, "not while another process is at work"
    finish(other)
    process.retry_failed()
    monkeypatch.setattr(trials, "STALE_SECONDS", -1.0)  # from now on, the killed one is stale
    process.claim().end(FAIL)  # lost, and repeated with another error
    finish(process.claim())
    process.claim().end(FAIL, "wrong")
    assert (process.claim(), process.ended()) == (None, 3)
    process.retry_failed()
    finish(process.claim())
    assert results(process) == [({"a": a}, [1]) for a in "xyz"]


@pytest.mark.parametrize("search", ["random", "tpe"])
def test_sampled_settings_are_within_their_ranges_and_reproducible(search: Any, tmp_path: Path) -> None:
    plan = planned("lr=1e-4..1e-2", "n=2..5", "p=rope,none", "ema=0.999951..0.99999", search=SearchOptions(search, 5))
    found = []
    for name in ("one", "two"):
        process = Trials(plan, str(tmp_path / name))
        while claimed := process.claim():
            finish(claimed)
            found.append(tuple(claimed.settings.items()))
    assert (found[:5], len({*found})) == (found[5:], 5)
    for (_, rate), (_, layers), (_, position), (_, ema) in found:
        assert (1e-4 <= float(rate) <= 1e-2, int(layers) in range(2, 6), position in ("rope", "none")) == (True,) * 3
        assert 0.999951 <= float(ema) <= 0.99999, "four digits would leave the range"
    assert min(float(rate) for (_, rate), *_ in found) < 1e-3, "sampled by the logarithm"
    kinds = planned("a=1..8", "b=3e-5..3e-4", "c=.1..0.5", "e=0..1.0", search=SearchOptions(search, 1))
    ranges = Trials(kinds, str(tmp_path / "kinds")).claim().trial.distributions.values()
    assert [(type(each).__name__[0], each.log) for each in ranges] == [("I", 0), ("F", 1), ("F", 0), ("F", 0)]
    longer = Trials(replace(plan, search=SearchOptions(search, 7)), str(tmp_path / "two"))
    assert [claimed is None for claimed in (longer.claim(), longer.claim(), longer.claim())] == [False, False, True]


def test_validations_of_later_seeds_follow_those_of_the_first() -> None:
    """Also where a run ends before its max_steps, which StopWhen then sets to its last step."""
    trial, module = Mock(rows=[{}]), Mock(selection=0.5)
    module.config.trainer.max_steps = 40
    worker._ReportValidations(trial, "").on_validation_end(Mock(global_step=15, max_steps=15), module)
    trial.report.assert_called_once_with(55, 0.5, 40)


def test_a_hopeless_trial_is_pruned(tmp_path: Path) -> None:
    for prune in (True, False):
        process = Trials(planned("a=1..99", search=SearchOptions("random", 8, prune)), str(tmp_path / str(prune)))
        for _ in range(6):
            claimed = process.claim()
            claimed.report(4, 0.9, 16)
            claimed.report(8, 0.9, 16)
            finish(claimed)
        bad = process.claim()
        bad.report(3, 0.1, 16)  # in the first quarter of its own steps
        with pytest.raises(optuna.TrialPruned) if prune else nullcontext():
            bad.report(4, 0.1, 16)
        lost = process.claim()
        lost.report(4, 0.95, 16)
        lost.end(FAIL)
        process.claim().report(8, 0.2, 16)  # resumed: its best validation is that of the lost trial


def test_a_line_that_was_cut_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "study.journal"
    claimed = Trials(GRID, str(file)).claim()
    file.write_bytes(file.read_bytes() + b'{"op_code": 8, "trial_id"')
    finish(claimed)
    assert Trials(GRID, str(file)).ended() == 1


@pytest.mark.parametrize("place", ["{}", "nonsense://me:secret@x", "x://h?password=secret", "sqlite:////no/such/x.db"])
def test_a_place_that_holds_no_study(place: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("run: {}\n")
    sentence = r"--study must be a journal file of Optuna or the URL of a database, got (?!.*secret)"
    with pytest.raises(ConfigError, match=sentence):
        Trials(GRID, place.format(tmp_path / "x.yaml"))
    assert (tmp_path / "x.yaml").read_text() == "run: {}\n"


def test_a_table_that_another_process_creates_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    exists = trials.DatabaseError("CREATE TABLE studies", None, Exception("table studies already exists"))
    monkeypatch.setattr(trials, "RDBStorage", Mock(side_effect=[exists, exists, "opened"]))
    assert trials.storage("sqlite:///study.db") == "opened"
