"""--resume: a run goes on where its last checkpoint stands, as if it had never been interrupted."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.memory_checks import check_weights
from minitx.config.parser import config_from_dict
from minitx.config.registry import resolve
from minitx.config.schema import Config
from minitx.data.tasks import TASKS, Task, generator
from minitx.data.tokenizers import Tokenizer
from minitx.training.folder import run_root

if TYPE_CHECKING:
    import lightning.pytorch as pl


class Resumed(NamedTuple):
    """A run that is to go on."""

    file: Path  # its last.ckpt
    step: int  # optimiser steps done
    config: Config  # with which they were done
    tokenizer: Tokenizer
    digest: str | None  # of its data; None in a checkpoint from before there was one

    def results(self, config: Config) -> Path | None:
        """The results.json of a run that has nothing left to do under a config; None where it has."""
        path = self.file.with_name("results.json")
        return path if self.step == config.trainer.max_steps and path.exists() else None


def resumed(config: Config) -> Resumed:
    """The newest version of a run that has a last.ckpt.

    Raises:
        ValueError: there is none, or it is damaged; the message tells what else is there.
    """
    root = run_root(config)
    try:
        file = checkpoint.find(root, "last")
    except ValueError:
        raise ValueError(f"--resume: there is no {root}/vN/last.ckpt to go on from") from None
    try:
        contents = checkpoint.read(file)
        if {"loops", "optimizer_states", "lr_schedulers"} - contents.keys():
            raise ValueError(f"{file} holds weights alone, no state of a training to go on from")
        before = config_from_dict(contents["minitx"]["config"])
        before = replace(before, data=resolve(TASKS, before.data, "data"))
        tokenizer = Tokenizer.from_dict(contents["minitx"]["tokenizer"])
        check_weights(checkpoint.weights(contents), before.model, tokenizer.vocab_size)
        return Resumed(file, contents["global_step"], before, tokenizer, contents.get("data_digest"))
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        said = str(error) if str(file) in str(error) else f"{file} is damaged ({error})"
        raise ValueError(f"--resume: {said}; {_elsewhere(file)}") from None


def _elsewhere(damaged: Path) -> str:
    """What to do about a last.ckpt that is damaged."""
    steps = sorted(damaged.parent.glob("step_*.ckpt"))
    if steps:
        return f"to go on from an earlier step, copy {steps[-1].name}, which stands beside it, over it"
    best = damaged.with_name("best.ckpt")
    if best.is_file():
        return f"the weights of the best validation stand beside it: begin a new run with --init_from {best}"
    return "there is no other checkpoint beside it: start a new run"


def as_begun(config: Config, before: Resumed) -> Config:
    """A config with what a run that began with another's weights has from there; that checkpoint may be gone."""
    begun = before.config.run.init_from
    same = begun and config.data.get("name") == before.config.data["name"]
    taken = {"tokenizer"} & before.config.data.keys() if same else ()
    data = {**config.data, **{key: before.config.data[key] for key in taken}}
    return replace(config, data=data, run=replace(config.run, init_from=begun))


def data_digest(task: Task) -> str:
    """A hash of a few training examples: other data, or another way to draw from it, gives another one."""
    tensors = [tensor for tensor in task.batch(generator(0), 8) if isinstance(tensor, torch.Tensor)]
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()[:16]


def validation_is_due(trainer: pl.Trainer) -> bool:
    """Whether the plan of the run has a validation behind the step that was done last."""
    step = trainer.global_step
    return step == trainer.max_steps or step * trainer.accumulate_grad_batches % int(trainer.val_check_interval) == 0


def begin_at(contents: dict[str, Any], accumulate: int) -> None:
    """Tell Lightning's loops, in a checkpoint that was read, to go on behind a whole step, whoever saved it and when.

    They count in batches, of which there may be another number in a step from now on; and of an epoch that was over, as
    that of a finished run is, they would begin another.

    Args:
        contents: of the checkpoint; changed.
        accumulate: batches of a step from now on.
    """
    step, loops = contents["global_step"], contents["loops"]["fit_loop"]
    done = _counted(step * accumulate)
    loops["epoch_progress"] = {name: _counted(1, 0) for name in ("total", "current")}
    loops["epoch_loop.batch_progress"] = {"total": done, "current": dict(done), "is_last_batch": False}
    loops["epoch_loop.state_dict"] = {"_batches_that_stepped": step}
    # A validation that has begun, but of which nothing is done, is done now, if one is due at all.
    begun = _counted(0 if contents.get("validated", True) else 1, 0)
    loops["epoch_loop.val_loop.batch_progress"] = {"total": begun, "current": dict(begun), "is_last_batch": False}


def _counted(begun: int, done: int | None = None) -> dict[str, int]:
    """What Lightning keeps of a loop: how often it was begun and done."""
    done = begun if done is None else done
    return {"ready": begun, "started": begun, "processed": done, "completed": done}
