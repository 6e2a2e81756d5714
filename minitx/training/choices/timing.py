"""What measurements of a machine run: a batch, and a clock that waits for the device."""

import time

import torch

from minitx.config.schema import Config
from minitx.data.batch import Batch
from minitx.data.tasks.base import Task, generator


def first_batch(config: Config, task: Task) -> Batch:
    """The first batch that a run trains on."""
    examples = task.batch(generator(config.run.seed, 0, 0), task.batch_size)
    return examples.frame(config.model.architecture, task.vocabulary.special)


def finished_at(device: torch.device | str) -> float:
    """The clock in seconds, read when the device has finished its work: a GPU computes while Python continues."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
