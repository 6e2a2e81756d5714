"""Runs that break off, as if their process had been killed, and what is to be equal afterwards."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minitx.config.schema import Config
from minitx.training.api import train_config as train
from minitx.training.module import TransformerModule


class Killed(BaseException):
    """Nobody catches this."""


def break_off(config: Config, step: int, hook: str = "training_step") -> None:
    """Train until the process "dies", in the middle of what follows `step`."""
    original = getattr(TransformerModule, hook)

    def dying(self: TransformerModule, *args: Any) -> Any:
        if self.trainer.global_step == step:
            raise Killed
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformerModule, hook, dying)
        with pytest.raises(Killed):
            train(config)


def state(folder: Path, name: str = "last") -> dict[str, Any]:
    """A checkpoint's contents."""
    return torch.load(folder / f"{name}.ckpt", weights_only=True)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve as TensorBoard shows it, but for speed; the figures of a finished run are no curve."""
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    log.Reload()
    tags = [tag for tag in log.Tags()["scalars"] if "second" not in tag and "final/" not in tag]
    return {tag: [(event.step, event.value) for event in log.Scalars(tag)] for tag in tags}


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, optimiser, curves and choice, bit for bit."""
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
