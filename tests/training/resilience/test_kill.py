"""kill -9 and SIGHUP, repeatedly: nothing but time is lost.

Each run is killed, resumed and killed again until it ends by itself. KILLS=200 tries more than the 60 here: a half at
random moments of training and saving, a half at chosen points.
"""

import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.atomic_files import UNFINISHED
from minitx.config.schema import Config
from minitx.training import api, run
from minitx.training.api import train_config as train
from minitx.training.module import TransformerModule
from tests.training.conftest import small_config
from tests.training.interrupting import assert_same_run, start_process

KILLS = int(os.environ.get("KILLS", "60"))
SEED = int(os.environ.get("SEED", "0"))
POINTS: dict[str, tuple[Any, str, int]] = {
    "mkdir": (Path, "mkdir", 3),
    "write": (os, "fsync", 20),
    "rename": (os, "replace", 20),
    "validation": (TransformerModule, "validation_step", 4),
    "report": (api, "evaluation_report", 1),
    "load": (run, "load", 1),
}
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


def stamp(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


def kill(process: Any, version: Path, chance: random.Random, number: int = signal.SIGKILL) -> bool:
    """Send a signal at a random moment of the start, or after a save; False if the process has ended before."""
    file = version / ("config.yaml" if chance.random() < 0.3 else "last.ckpt")
    before, deadline = stamp(file), time.monotonic() + LONGEST_WAIT
    while stamp(file) == before and process.is_alive():
        assert time.monotonic() < deadline, "nothing is written"
        time.sleep(0.001)
    process.join(chance.uniform(0.0, 0.3))
    if process.is_alive():
        os.kill(process.pid, number)
    process.join(LONGEST_WAIT)
    return process.exitcode in (-number, 128 + number)


def die_in(point: str, chance: random.Random) -> None:
    """Let this process die in one of the calls of a function, before or after its work."""
    owner, name, most = POINTS[point]
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


def killed_run(folder: Path, config: Config, most: int, chance: random.Random, point: str) -> tuple[int, int]:
    """Train a run that is killed up to `most` times and resumed each time, to its end.

    The point is one of POINTS, random, or SIGHUP.

    Returns:
        How often it was killed, and how often in the middle of writing a file.
    """
    name = config.run.name
    version, log = folder / name / "v0", folder / f"{name}.log"
    number = signal.SIGHUP if point == "SIGHUP" else signal.SIGKILL
    killed = torn = saved = 0
    while True:
        resume = (version / "last.ckpt").exists()
        if not resume and list(version.glob("events*")):  # killed before its first save: there is nothing to resume
            version.rename(folder / f"{name}_gone_{killed}")
        dies = partial(die_in, point, random.Random(chance.random())) if point in POINTS and killed < most else str
        process = start_process(config, log, resume, dies)
        if killed == most or point in POINTS:
            process.join(LONGEST_WAIT)
            ended = process.exitcode != -signal.SIGKILL
        else:
            ended = not kill(process, version, chance, number)
        assert "Traceback" not in log.read_text(), log.read_text()[-3000:]
        if ended:
            assert process.exitcode == 0, log.read_text()[-3000:]
            assert saved == 0 or f" after step {saved:,}\n" in log.read_text(), "what was saved is not lost"
            return killed, torn
        killed += 1
        torn += any(version.glob(f".*{UNFINISHED}"))
        steps = {file.stem: checkpoint.read(file)["global_step"] for file in version.glob("*.ckpt")}  # none is damaged
        assert steps.get("last", 0) >= saved, "a run never falls back"
        saved = steps.get("last", 0)
        assert all(step == int(name[5:]) for name, step in steps.items() if name.startswith("step_"))


def kill_runs(folder: Path, kills: int, seed: int, steps: int, point: str = "random") -> tuple[int, int]:
    """Kill runs until there have been so many kills; each is compared with one that was not killed."""
    chance, straight = random.Random(seed), folder / "straight/v0"
    train(config(folder, "straight", steps))
    killed = torn = runs = 0
    while killed < kills:
        version = folder / f"killed_{runs}/v0"
        times, in_write = killed_run(folder, config(folder, version.parent.name, steps), kills - killed, chance, point)
        killed, torn, runs = killed + times, torn + in_write, runs + 1
        assert_same_run(straight, version)
        assert not list(version.glob(".*")), "unfinished files are removed"
        assert {file.name for file in version.glob("*.ckpt")} == {file.name for file in straight.glob("*.ckpt")}
        assert not version.with_name("v1").exists()
    return killed, torn


MANY = [("random", KILLS // 2, 120), *((point, KILLS // 12, 40) for point in POINTS), ("SIGHUP", KILLS // 3, 40)]


@pytest.mark.parametrize(
    ("point", "kills", "steps"), [("random", 2, 26), *(pytest.param(*words, marks=pytest.mark.slow) for words in MANY)]
)
def test_killed_runs_are_the_undisturbed_run(tmp_path: Path, point: str, kills: int, steps: int) -> None:
    killed, torn = kill_runs(tmp_path, kills, SEED, steps, point)
    print(f"{point}: {killed} kills, {torn} of them in the middle of a write")
    assert killed == kills
