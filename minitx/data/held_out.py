"""The held-out split that an evaluation or an inspection reads, by its name."""

from minitx.config.errors import ConfigError
from minitx.data.splits import SPLITS, Split
from minitx.data.tasks import Task


def held_out_split(task: Task, split: str | None) -> Split:
    """Check the name of a held-out split; by default the task's final split."""
    if split is None:
        return task.final_split
    if split not in SPLITS or split == "training":
        raise ConfigError(f"--split must be test or validation, got {split}")
    return split
