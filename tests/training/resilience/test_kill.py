"""kill -9, repeatedly and anywhere: nothing but time is lost.

Each run is killed, resumed and killed again until it ends by itself. KILLS=200 tries more than the 60 here.
"""

import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minitx.checkpoints import format as checkpoint
from minitx.config.schema import Config
from minitx.training import api, run
from minitx.training.api import train_config as train
from minitx.training.module import TransformerModule
from tests.training.conftest import small_config
from tests.training.interrupting import assert_same_run, start_process

KILLS = int(os.environ.get("KILLS", "60"))
SEED = int(os.environ.get("SEED", "0"))
POINTS: list[tuple[Any, str, int]] = [
    (Path, "mkdir", 3), (os, "fsync", 20), (os, "replace", 20),
    (TransformerModule, "training_step", 40), (TransformerModule, "validation_step", 4),
    (api, "evaluation_report", 1), (run, "load", 1),
]  # fmt: skip
"""Functions that a process dies in: owner, name, and how many calls of it a run survives, at most."""
LONGEST_WAIT = 120.0


def config(folder: Path, name: str, steps: int) -> Config:
    """A run that saves at every other step, and does hardly anything else."""
    return small_config(
        folder,
        run={"name": name, "folder": str(folder)},
        data={"batch_size": 8, "validation_size": 8, "test_size": 8},
        model={"d_model": 64, "dropout": 0.1},
        trainer={"max_steps": steps, "val_every_n_steps": 15, "keep_every_n_steps": 40},
        log={"every_n_steps": 1, "attention": {"every_n_steps": 2, "every_n_validations": 2}},
    )


def die(chance: random.Random) -> None:
    """Let this process die in one of the calls of a function, before or after its work."""
    owner, name, most = chance.choice(POINTS)
    original, left, before = getattr(owner, name), iter(range(chance.randint(1, most), 0, -1)), chance.random() < 0.5

    def dying(*words: Any, **more: Any) -> Any:
        last = next(left, 0) == 1
        if last and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*words, **more)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


def killed_run(config: Config, most: int, chance: random.Random) -> int:
    """Train a run that is killed up to `most` times and resumed each time, to its end; returns how often it was."""
    root = Path(config.run.folder) / config.run.name
    version, log = root / "v0", root.with_suffix(".log")
    killed = saved = 0
    while True:
        resume = (version / "last.ckpt").exists()
        if not resume and list(version.glob("events*")):  # killed before its first save: there is nothing to resume
            version.rename(root.with_name(f"{root.name}_gone_{killed}"))
        process = start_process(config, log, resume, partial(die, chance) if killed < most else str)
        chance.random()  # of the next process
        process.join(LONGEST_WAIT)
        assert "Traceback" not in log.read_text(), log.read_text()[-3000:]
        if process.exitcode != -signal.SIGKILL:
            assert process.exitcode == 0, log.read_text()[-3000:]
            assert saved == 0 or f" after step {saved:,}\n" in log.read_text(), "what was saved is not lost"
            return killed
        killed += 1
        steps = {file.stem: checkpoint.read(file)["global_step"] for file in version.glob("*.ckpt")}  # none is damaged
        assert steps.get("last", 0) >= saved, "a run never falls back"
        saved = steps.get("last", 0)
        assert all(step == int(name[5:]) for name, step in steps.items() if name.startswith("step_"))


@pytest.mark.parametrize(("kills", "steps"), [(2, 26), pytest.param(KILLS, 60, marks=pytest.mark.slow)])
def test_killed_runs_are_the_undisturbed_run(tmp_path: Path, kills: int, steps: int) -> None:
    chance, straight = random.Random(SEED), tmp_path / "straight/v0"
    train(config(tmp_path, "straight", steps))
    killed = runs = 0
    while killed < kills:
        version = tmp_path / f"killed_{runs}/v0"
        killed += killed_run(config(tmp_path, version.parent.name, steps), kills - killed, chance)
        runs += 1
        assert_same_run(straight, version)
        assert not list(version.glob(".*")), "unfinished files are removed"
        assert {file.name for file in version.glob("*.ckpt")} == {file.name for file in straight.glob("*.ckpt")}
        assert not version.with_name("v1").exists()
