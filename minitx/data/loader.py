"""Batches by number: batch n of a run is a pure function of (seed, n, rank), so that resuming is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce

import torch

from minitx.data.batch import IGNORE, Batch
from minitx.data.examples import Examples, count, rows
from minitx.data.framing import frame
from minitx.data.tasks import Task, generator


class TrainingBatches:
    """Framed training batches, from the first one that the run has not seen.

    Args:
        task: draws the examples.
        architecture: what they are framed for.
        seed: of the run.
        rank: of this process; each draws its own batches.
        first: tells the number of the first batch, when iteration starts.
        total: number of batches in the whole run.
        accumulate: batches whose gradients make one optimiser step. They are drawn together, so that each knows how
            many labels the step has: a mean over them all, and not a mean of means, is what a larger batch would give.
    """

    def __init__(
        self,
        task: Task,
        architecture: str,
        seed: int,
        rank: int,
        first: Callable[[], int],
        total: int,
        accumulate: int = 1,
    ) -> None:
        self.task, self.architecture = task, architecture
        self.seed, self.rank, self.first, self.total, self.accumulate = seed, rank, first, total, accumulate

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Batch]:
        for start in range(self.first(), self.total, self.accumulate):
            yield from self.step(start)

    def step(self, start: int) -> list[Batch]:
        """The batches of one optimiser step, of which the first has this number."""
        step = [self._batch(number) for number in range(start, min(start + self.accumulate, self.total))]
        if self.accumulate == 1:  # it has its own labels, and counting is cheaper where the model is
            return step
        labels = reduce(torch.add, [(batch.labels != IGNORE).sum() for batch in step])
        return [batch._replace(step_labels=labels) for batch in step]

    def _batch(self, number: int) -> Batch:
        examples = self.task.batch(generator(self.seed, number, self.rank), self.task.batch_size)
        return frame(examples, self.architecture, self.task.vocabulary.special)


class FixedBatches:
    """Held-out examples in slices, every process its own share.

    Args:
        examples: all of them.
        size: examples in a slice, at most.
        rank: of this process.
        world_size: number of processes.
    """

    def __init__(self, examples: Examples, size: int, rank: int = 0, world_size: int = 1) -> None:
        # Smaller slices where there would be fewer than processes: an empty share is an error to Lightning.
        self.examples, self.size = examples, min(size, max(1, count(examples) // world_size))
        self.starts = range(0, count(examples), self.size)[rank::world_size]

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Examples]:
        for start in self.starts:
            yield rows(self.examples, start, start + self.size)
