"""Runs that end as if their process had been killed, and what must be equal afterwards."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minitx.config.schema import Config
from minitx.training.api import train_config as train
from minitx.training.module import TransformerModule

FORK = multiprocessing.get_context("fork")
"""Starts processes that have imported everything already."""


def start_process(config: Config, log: Path, resume: bool = False, prepare: Callable[[], object] = lambda: None) -> Any:
    """Train in another process, whose output is appended to `log` and which calls `prepare` first."""
    process = FORK.Process(target=_train_and_log, args=(config, str(log), resume, prepare), daemon=True)
    process.start()
    return process


def _train_and_log(config: Config, log: str, resume: bool, prepare: Callable[[], object]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may ignore it
    with Path(log).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)
    prepare()
    train(config, resume)


def run_script(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script that starts several processes, which Lightning does by running its file again."""
    file, root = folder / "script.py", Path(__file__).parents[2]
    file.write_text(script)
    env = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, str(file), *words]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=300)


class Killed(BaseException):
    """Nothing catches this."""


@contextmanager
def acting(acts: dict[int, Callable[[], object]], hook: str = "training_step") -> Iterator[None]:
    """Call functions before a hook of the module, each once, after so many steps."""
    original, left = getattr(TransformerModule, hook), dict(acts)

    def call(self: TransformerModule, *given: Any) -> Any:
        left.pop(self.trainer.global_step, lambda: None)()
        return original(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformerModule, hook, call)
        yield


@contextmanager
def killed(step: int, hook: str = "training_step") -> Iterator[None]:
    """Let this process "die" before a hook of the module after `step` steps."""

    def die() -> None:
        raise Killed

    with acting({step: die}, hook), pytest.raises(Killed):
        yield


def break_off(config: Config | Mapping[str, Any], step: int, hook: str = "training_step") -> None:
    """Train until the process "dies"."""
    with killed(step, hook):
        train(config)


def signalled(step: int, number: int, hook: str = "training_step") -> AbstractContextManager[None]:
    """Send this process a signal before a hook of the module after `step` steps."""
    return acting({step: lambda: os.kill(os.getpid(), number)}, hook)


@contextmanager
def stopped(step: int, number: int, hook: str = "training_step") -> Iterator[None]:
    """Stop a run by a signal; its handlers are those of before."""
    before = [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)]
    with signalled(step, number, hook), pytest.raises(SystemExit) as stop:
        yield
    assert stop.value.code == 128 + number
    assert [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)] == before


def state(folder: Path, name: str = "last") -> dict[str, Any]:
    """A checkpoint's contents."""
    return torch.load(folder / f"{name}.ckpt", weights_only=True)


def events(folder: Path) -> EventAccumulator:
    """Everything that TensorBoard shows of a run."""
    found = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    found.Reload()
    return found


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve, without those that depend on the clock and without the figures of a finished run."""
    log = events(folder)
    tags = [tag for tag in log.Tags()["scalars"] if "second" not in tag and "when_finished" not in tag]
    return {tag: [(event.step, event.value) for event in log.Scalars(tag)] for tag in tags}


def equal(one: Any, other: Any) -> bool:
    """Whether two nested states are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, optimizer, curves, selection and results are equal, bit for bit."""
    for name, more in (("last", ["optimizer_states"]), ("best", [])):
        ours, theirs = state(one, name), state(other, name)
        assert not [key for key in ("global_step", "state_dict", *more) if not equal(ours[key], theirs[key])], name
    results = [json.loads((folder / "results.json").read_bytes()) for folder in (one, other)]
    assert {**results[0], "seconds": 0} == {**results[1], "seconds": 0}
    assert scalars(one) == scalars(other)
    tables = [file.read_bytes() if (file := folder / "heads.json").exists() else None for folder in (one, other)]
    assert tables[0] == tables[1]
