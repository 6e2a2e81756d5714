"""Runs that end as if their process had been killed, and what must be equal afterwards."""

import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils._pytree import tree_map_only

from minitx.checkpoints import format as checkpoint
from minitx.config.schema import Config
from minitx.training.api import train_config as train
from minitx.training.module import TransformerModule
from tests.training.conftest import small_values

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
PATIENCE = 30.0  # seconds
FORK = multiprocessing.get_context("fork")


def forked(target: Callable[[], object]) -> Any:
    """Start a process that has imported everything already, but cannot train if this one has threads for a GPU."""
    if torch.cuda.is_available():
        pytest.skip("autograd does not work in a forked process: set CUDA_VISIBLE_DEVICES to nothing")
    process = FORK.Process(target=target, daemon=True)
    process.start()
    return process


def start_process(config: Config, log: Path, resume: bool = False, prepare: Callable[[], object] = lambda: None) -> Any:
    """Train in another process, whose output is appended to `log` and which calls `prepare` first."""

    def train_and_log() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may ignore it
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        prepare()
        train(config, resume)

    return forked(train_and_log)


def run_script(folder: Path, prepare: str, config: Config, *words: str) -> subprocess.CompletedProcess[str]:
    """`minitx train` in several processes, which Lightning starts by running its file again; each prepares `patch`."""
    file, values = folder / "script.py", folder / "config.yaml"
    values.write_text(json.dumps(config.to_dict()))
    file.write_text(
        "import pytest, sys\nfrom minitx.cli.main import main\nwith pytest.MonkeyPatch.context() as patch:\n"
        f"    {prepare}\n    main(['train', *sys.argv[1:]])\n"
    )
    command = [sys.executable, str(file), "--config", str(values), *words]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


class Run:
    """`minitx train` of a small model in a session of its own, until it is stopped; `rank` is of launched_ranks."""

    def __init__(self, folder: Path, *words: str, rank: dict[str, str] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.out, config = folder / "out.txt", folder / "config.yaml"
        steps = {"max_steps": 100_000, "val_every_n_steps": 20, "save_every_n_steps": 30}
        config.write_text(json.dumps(small_values(folder, data={"batch_size": 8}, trainer=steps)))
        env = {**ENVIRONMENT, "PYTHONUNBUFFERED": "1", **(rank or {})}
        command = [sys.executable, str(ROOT / "train.py"), "--config", str(config), *words]
        with self.out.open("w") as out:
            streams: dict[str, Any] = {"stdout": out, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **streams)

    def wait_for(self, pattern: str) -> None:
        """Wait until it has printed this."""
        end = time.monotonic() + 4 * PATIENCE
        while not re.search(pattern, self.out.read_text()):
            assert self.process.poll() is None, self.out.read_text()
            assert time.monotonic() < end, self.out.read_text()
            time.sleep(0.01)

    def children(self) -> list[int]:
        found = subprocess.run(["pgrep", "-P", str(self.process.pid), "-f", "train.py"], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def send(self, number: int, to: str) -> None:
        """Send to the first process, to the second, or to both as a terminal does."""
        if to == "all":
            os.killpg(self.process.pid, number)
        else:
            os.kill(self.process.pid if to == "first" else self.children()[0], number)

    def ended(self, patience: float = PATIENCE) -> int:
        """The exit code as a shell reports it, once all processes have ended."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            pytest.fail(f"hangs\n{self.output()}")
        end = time.monotonic() + PATIENCE
        while self._group_lives():
            assert time.monotonic() < end, f"a process is left over\n{self.output()}"
            time.sleep(0.05)
        return 128 - code if code < 0 else code

    def _group_lives(self) -> bool:
        found = subprocess.run(["ps", "-o", "stat=", "-g", str(self.process.pid)], capture_output=True, text=True)
        return any(not line.startswith("Z") for line in found.stdout.splitlines() if line.strip())

    def output(self) -> str:
        """Without a traceback."""
        text = self.out.read_text()
        assert "Traceback" not in text, text
        assert "Error" not in text, text
        return text


def launched_ranks(nodes: int, each: int) -> list[dict[str, str]]:
    """What a launcher puts into the environment of each process: on so many nodes, all of them this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": nodes * each, "LOCAL_WORLD_SIZE": each, "TORCHELASTIC_RUN_ID": 1}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [{"RANK": rank, "LOCAL_RANK": rank % each, "GROUP_RANK": rank // each} for rank in range(nodes * each)]
    return [{name: str(value) for name, value in (shared | rank).items()} for rank in ranks]


class Killed(BaseException):
    """Nothing catches this."""


@contextmanager
def acting(acts: dict[int, Callable[[], object]], hook: str = "training_step") -> Iterator[None]:
    """Call functions before a hook of the module, each once, after so many steps; all of them, unless one raises."""
    original, left = getattr(TransformerModule, hook), dict(acts)

    def call(self: TransformerModule, *given: Any) -> Any:
        left.pop(self.trainer.global_step, lambda: None)()
        return original(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformerModule, hook, call)
        yield
    assert not left, "it was never called"


@contextmanager
def killed(step: int, hook: str = "training_step") -> Iterator[None]:
    """Let this process "die" before a hook of the module after `step` steps."""
    with acting({step: Mock(side_effect=Killed)}, hook), pytest.raises(Killed):
        yield


def break_off(config: Config | Mapping[str, Any], step: int) -> None:
    """Train until the process "dies"."""
    with killed(step):
        train(config)


@contextmanager
def stopped(step: int, number: int, hook: str = "training_step") -> Iterator[None]:
    """Stop a run by a signal before a hook of the module after `step` steps; its handlers are those of before."""
    before = [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)]
    ending, match = (KeyboardInterrupt, None) if number == signal.SIGINT else (SystemExit, f"^{128 + number}$")
    with acting({step: lambda: signal.raise_signal(number)}, hook), pytest.raises(ending, match=match):
        yield
    assert [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)] == before


def state(folder: Path, name: str = "last") -> dict[str, Any]:
    return torch.load(folder / f"{name}.ckpt", weights_only=True)


def weights(folder: Path, name: str = "last", part: str = "state_dict") -> dict[str, torch.Tensor]:
    """The weights of the model in a checkpoint."""
    return checkpoint.weights({"state_dict": state(folder, name)[part]})


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0, "tensors": 0}).Reload()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve, without those that depend on the clock and without the figures of a finished run."""
    log = events(folder)
    tags = [tag for tag in log.Tags()["scalars"] if "second" not in tag and "when_finished" not in tag]
    return {tag: [(event.step, event.value) for event in log.Scalars(tag)] for tag in tags}


assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)
"""Two nested states are equal, bit for bit."""


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, optimizer, curves, selection and results are equal, bit for bit."""
    for name, more in (("last", ["optimizer_states"]), ("best", [])):
        # Of texts, which assert_close does not take, the hashes are compared.
        ours, theirs = (tree_map_only(str, hash, state(folder, name)) for folder in (one, other))
        for key in ("global_step", "state_dict", *more):
            assert_equal(ours[key], theirs[key])
    ours, theirs = (json.loads((folder / "results.json").read_bytes()) for folder in (one, other))
    assert ours | {"seconds": 0} == theirs | {"seconds": 0}
    assert scalars(one) == scalars(other)
    ours, theirs = ([file.read_bytes() for file in folder.glob("heads.json")] for folder in (one, other))
    assert ours == theirs
