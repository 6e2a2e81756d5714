"""Tasks. A task has a tokenizer and samples whole batches of ids; special tokens and models are not its concern.

To add a toy task, subclass SequenceTask in sequences.py, write `answer` and register it under the name that goes into
`data.name`; its fields are the options that YAML may set. A new file of tasks stands in the table of base.py.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from minitx.data.tasks.base import TASKS, LengthTask, QuestionTask, SequenceTask, Task, generator, hash_seed, register
from minitx.data.tasks.sequences import Copy, Reverse

if TYPE_CHECKING:
    from minitx.data.tasks.arithmetic import Addition, ModularAddition
    from minitx.data.tasks.dates import Dates
    from minitx.data.tasks.formal_languages import Dyck, Majority, Parity
    from minitx.data.tasks.imported import ImportedMaskedText, ImportedPairs, ImportedText
    from minitx.data.tasks.languages import LanguageTask, NumberWords
    from minitx.data.tasks.markov import Markov
    from minitx.data.tasks.more_sequences import CopyTwice, Sort
    from minitx.data.tasks.recall import AssociativeRecall, Induction
    from minitx.data.tasks.text import MaskedText, Text
    from minitx.data.tasks.translation import Translation

__all__ = [
    "TASKS", "Addition", "AssociativeRecall", "Copy", "CopyTwice", "Dates", "Dyck", "ImportedMaskedText",
    "ImportedPairs", "ImportedText", "Induction", "LanguageTask", "LengthTask", "Majority", "Markov", "MaskedText",
    "ModularAddition", "NumberWords", "Parity", "QuestionTask", "Reverse", "SequenceTask", "Sort", "Task", "Text",
    "Translation", "generator", "hash_seed", "register",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the module of a task when the task is first requested."""
    module = {**TASKS.classes, "LanguageTask": "minitx.data.tasks.languages"}.get(name)
    if module is None:
        raise AttributeError(f"module 'minitx.data.tasks' has no attribute {name!r}")
    return getattr(import_module(module), name)
