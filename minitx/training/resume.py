"""Checks and state of a resumed run: the digest of its data, and the counters of Lightning's loops."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from minitx.data.tasks import Task, generator

if TYPE_CHECKING:
    import lightning.pytorch as pl


def data_digest(task: Task) -> str:
    """Hash a few training examples: other data, or another way of sampling, has another digest."""
    tensors = [tensor for tensor in task.batch(generator(0), 8) if isinstance(tensor, torch.Tensor)]
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()[:16]


def validation_is_due(trainer: pl.Trainer) -> bool:
    """Whether a validation is scheduled after the latest step."""
    step = trainer.global_step
    return step == trainer.max_steps or step * trainer.accumulate_grad_batches % int(trainer.val_check_interval) == 0


def resume_loops(contents: dict[str, Any], accumulate: int) -> None:
    """Set Lightning's loops in a checkpoint to continue after its last whole step.

    The loops count batches, whose number per step may have changed; and Lightning would follow the finished epoch of a
    completed run by another.

    Args:
        contents: of the checkpoint; changed in place.
        accumulate: batches per optimizer step.
    """
    step, loops = contents["global_step"], contents["loops"]["fit_loop"]
    done = _counters(step * accumulate, step * accumulate)
    loops["epoch_progress"] = {name: _counters(1, 0) for name in ("total", "current")}
    loops["epoch_loop.batch_progress"] = {"total": done, "current": dict(done), "is_last_batch": False}
    loops["epoch_loop.state_dict"] = {"_batches_that_stepped": step}
    # One started and not completed makes Lightning run the validation that was due at the last save.
    started = _counters(0 if contents.get("validated", True) else 1, 0)
    loops["epoch_loop.val_loop.batch_progress"] = {"total": started, "current": dict(started), "is_last_batch": False}


def _counters(started: int, done: int) -> dict[str, int]:
    """The counters of one of Lightning's loops."""
    return {"ready": started, "started": started, "processed": done, "completed": done}
