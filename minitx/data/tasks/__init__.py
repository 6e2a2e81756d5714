"""Tasks. A task has a tokenizer and samples whole batches of ids, which data/examples.py frames for a model.

To add a toy task, subclass SequenceTask in sequences.py, write `answer` and register it under the name for
`data.name`; its fields are the options that YAML may set. A new file of tasks needs an entry in MODULES of base.py.
"""

from typing import Any

from minitx.data.tasks.base import TASKS, Task, generator, hash_seed, register
from minitx.data.tasks.question_tasks import LengthTask, QuestionTask, SequenceTask
from minitx.data.tasks.sequences import Copy, Reverse

__all__ = [
    "TASKS", "Copy", "LengthTask", "QuestionTask", "Reverse", "SequenceTask", "Task", "generator", "hash_seed",
    "register",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Another task by its class, which is imported when it is first requested: CopyTwice is copy_twice."""
    for task in TASKS:
        if name == task.title().replace("_", ""):
            return TASKS[task]
    raise AttributeError(f"module 'minitx.data.tasks' has no attribute {name!r}")
