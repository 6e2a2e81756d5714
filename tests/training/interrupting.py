"""Runs that end as if their process had been killed, and what must be equal afterwards."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
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


def start_process(
    config: Config,
    log: Path,
    resume: bool = False,
    temporary: Path | None = None,
    prepare: Callable[[], object] = lambda: None,
) -> Any:
    """Train in another process, whose output is appended to `log` and whose temporary files are in `temporary`.

    It calls `prepare` first.
    """
    process = FORK.Process(target=_train_and_log, args=(config, str(log), resume, temporary, prepare), daemon=True)
    process.start()
    return process


def _train_and_log(
    config: Config, log: str, resume: bool, temporary: Path | None, prepare: Callable[[], object]
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may ignore it
    with Path(log).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    tempfile.tempdir = None if temporary is None else str(temporary)
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


def break_off(config: Config, step: int, hook: str = "training_step") -> None:
    """Train until the process "dies" in a hook of the module after `step` steps."""
    original = getattr(TransformerModule, hook)

    def dying(self: TransformerModule, *args: Any) -> Any:
        if self.trainer.global_step == step:
            raise Killed
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformerModule, hook, dying)
        with pytest.raises(Killed):
            train(config)


def interrupt_at(patch: pytest.MonkeyPatch, step: int, number: int, hook: str = "training_step") -> None:
    """Send this process a signal in a hook of the module after `step` steps."""
    original = getattr(TransformerModule, hook)

    def interrupted(self: TransformerModule, batch: Any, index: int) -> Any:
        if self.trainer.global_step == step and index % self.trainer.accumulate_grad_batches == 0:
            os.kill(os.getpid(), number)
        return original(self, batch, index)

    patch.setattr(TransformerModule, hook, interrupted)


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
    assert equal(*(state(folder)["optimizer_states"] for folder in (one, other)))
    results = [json.loads((folder / "results.json").read_bytes()) for folder in (one, other)]
    assert {**results[0], "seconds": 0} == {**results[1], "seconds": 0}
    for name in ("last", "best"):
        ours, theirs = state(one, name), state(other, name)
        assert ours["global_step"] == theirs["global_step"], name
        assert ours["state_dict"].keys() == theirs["state_dict"].keys()
        for key, weight in ours["state_dict"].items():
            assert torch.equal(weight, theirs["state_dict"][key]), f"{name}: {key}"
    assert scalars(one) == scalars(other)
    tables = [folder / "heads.json" for folder in (one, other)]
    assert tables[0].exists() == tables[1].exists()
    assert not tables[0].exists() or tables[0].read_bytes() == tables[1].read_bytes()
