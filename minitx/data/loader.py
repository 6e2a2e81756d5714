"""Training batches and held-out examples by number: batch n of a run is a pure function of (seed, n, rank)."""

from collections import UserList
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module

import torch

from minitx.config.errors import ConfigError
from minitx.config.schema import Config
from minitx.data.batch import IGNORE, Batch
from minitx.data.examples import Examples
from minitx.data.tasks.base import Task, generator
from minitx.data.tasks.question_tasks import QuestionTask


@dataclass(eq=False)
class TrainingBatches:
    """The training batches that a run still needs."""

    task: Task
    config: Config
    rank: int  # of this process; every process samples its own batches
    first: Callable[[], int]  # the number of the first batch; called when iteration starts, as a run may be resumed

    def __post_init__(self) -> None:
        self._stages, self._accumulate = curriculum(self.task), self.config.trainer.accumulate_grad_batches

    def __len__(self) -> int:
        """Number of batches in the whole run."""
        return self.config.trainer.max_steps * self._accumulate

    def __iter__(self) -> Iterator[Batch]:
        for start in range(self.first(), len(self), self._accumulate):
            yield from self.step(start)

    def step(self, start: int) -> list[Batch]:
        """The batches of the optimizer step that begins with batch number `start`."""
        task = next((stage for end, stage in self._stages if start // self._accumulate < end), self.task)
        seeds = [(self.config.run.seed, number, self.rank) for number in range(start, start + self._accumulate)]
        examples = [task.batch(generator(*seed), task.batch_size) for seed in seeds]
        step = [each.frame(self.config.model.architecture, self.task.vocabulary.special) for each in examples]
        if self._accumulate == 1:  # the loss counts the labels of a single batch itself, on the model's device
            return step
        # The loss is the mean over the labels of a step, as in one larger batch, and not a mean of means.
        labels = torch.stack([(batch.labels != IGNORE).sum() for batch in step]).sum()
        return [replace(batch, step_labels=labels) for batch in step]


def curriculum(task: Task) -> list[tuple[int, Task]]:
    """The tasks of data.stages, each with the step at which it ends; the task itself follows them."""
    if not isinstance(task, QuestionTask) or not task.stages:
        return []
    return import_module("minitx.data.stages").tasks_of(task)  # an extra


def fixed_batches(examples: Examples, size: int, rank: int = 0, world_size: int = 1) -> UserList[Examples]:
    """Held-out examples in slices of at most `size`, of which every process takes its share."""
    if world_size > max(1, len(examples)):
        raise ConfigError(f"data.validation_size: {world_size} processes need an example each, got {len(examples)}")
    # Slices are smaller if there would be fewer than processes: Lightning refuses an empty share.
    size = min(size, max(1, len(examples) // world_size))
    starts = range(0, len(examples), size)[rank::world_size]
    return UserList(examples.slice(start, start + size) for start in starts)  # to Lightning a list is several loaders
