"""Batches by number: batch n of a run is a pure function of (seed, n, rank), so that resuming is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from minitx.data.examples import Examples, count, rows
from minitx.data.framing import Batch, frame
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
    """

    def __init__(
        self, task: Task, architecture: str, seed: int, rank: int, first: Callable[[], int], total: int
    ) -> None:
        self.task, self.architecture = task, architecture
        self.seed, self.rank, self.first, self.total = seed, rank, first, total

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self.first(), self.total):
            examples = self.task.batch(generator(self.seed, number, self.rank), self.task.batch_size)
            yield frame(examples, self.architecture, self.task.vocabulary.special)


class FixedBatches:
    """Held-out examples in slices, every process its own share.

    Args:
        examples: all of them.
        size: examples in a slice.
        rank: of this process.
        world_size: number of processes.
    """

    def __init__(self, examples: Examples, size: int, rank: int = 0, world_size: int = 1) -> None:
        self.examples, self.size = examples, size
        self.starts = range(0, count(examples), size)[rank::world_size]

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Examples]:
        for start in self.starts:
            yield rows(self.examples, start, start + self.size)
