"""What a resumed run must find again: its data, and the place of Lightning's loops."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from minitx.data.tasks import Task, generator

if TYPE_CHECKING:
    import lightning.pytorch as pl


def data_digest(task: Task) -> str:
    """Hash a few training examples: other data, or another way of sampling it, has another digest."""
    tensors = [tensor for tensor in task.batch(generator(0), 8) if isinstance(tensor, torch.Tensor)]
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()[:16]


def validation_is_due(trainer: pl.Trainer) -> bool:
    """Whether a validation is planned after the last step."""
    step = trainer.global_step
    return step == trainer.max_steps or step * trainer.accumulate_grad_batches % int(trainer.val_check_interval) == 0


def begin_at(contents: dict[str, Any], accumulate: int) -> None:
    """Set Lightning's loops, in the contents of a checkpoint, to continue after a whole step.

    The loops count in batches, of which a step may now have another number; and an epoch that was over, as that of a
    finished run is, would be followed by another.

    Args:
        contents: of the checkpoint; changed.
        accumulate: batches of a step from now on.
    """
    step, loops = contents["global_step"], contents["loops"]["fit_loop"]
    done = _counted(step * accumulate)
    loops["epoch_progress"] = {name: _counted(1, 0) for name in ("total", "current")}
    loops["epoch_loop.batch_progress"] = {"total": done, "current": dict(done), "is_last_batch": False}
    loops["epoch_loop.state_dict"] = {"_batches_that_stepped": step}
    # A validation that was started and not done is done now, if one is due at all.
    begun = _counted(0 if contents.get("validated", True) else 1, 0)
    loops["epoch_loop.val_loop.batch_progress"] = {"total": begun, "current": dict(begun), "is_last_batch": False}


def _counted(begun: int, done: int | None = None) -> dict[str, int]:
    """The counters that Lightning keeps of a loop."""
    done = begun if done is None else done
    return {"ready": begun, "started": begun, "processed": done, "completed": done}
