"""The curriculum of a task: other options for the first steps of training (data.stages)."""

from dataclasses import fields, replace

from minitx.config.errors import ConfigError
from minitx.data.tasks.base import generator
from minitx.data.tasks.question_tasks import QuestionTask


def tasks_of(task: QuestionTask) -> list[tuple[int, QuestionTask]]:
    """The tasks of its stages, each with the step at which it ends.

    Raises:
        ConfigError: a stage without steps, with options that are not the task's own, with other or longer examples, or
            whose examples are all held out.
    """
    stages: list[tuple[int, QuestionTask]] = []
    own = {field.name for field in fields(task)} - {field.name for field in fields(QuestionTask)}
    for stage in task.stages:
        steps, options = stage.get("steps"), {name: value for name, value in stage.items() if name != "steps"}
        if type(steps) is not int or steps < 1 or not own.issuperset(options):
            expected = f"steps, at least 1, and options of the task ({', '.join(sorted(own))})"
            raise ConfigError(f"data.stages: each stage has {expected}, got {stage}")
        try:
            part = replace(task, stages=(), **options)
        except ConfigError as error:
            raise ConfigError(f"data.stages: {error}") from None
        longer = any(length > longest for length, longest in zip(part.longest, task.longest, strict=True))
        if longer or not _same_symbols(part, task):
            raise ConfigError(f"data.stages: no stage has longer examples or other symbols than the task, got {stage}")
        part.vocabulary, part.sampling = task.vocabulary, task.sampling
        try:
            part.batch(generator(0), 1)
        except ConfigError:
            raise ConfigError(f"data.stages: each stage needs examples that are not held out, got {stage}") from None
        stages.append((steps + (stages[-1][0] if stages else 0), part))
    return stages


def _same_symbols(part: QuestionTask, task: QuestionTask) -> bool:
    """Whether a stage has the symbols of the task; for texts, it may have a part of the characters."""
    if part.vocabulary.to_dict() == task.vocabulary.to_dict():
        return True
    own, whole = ({*each.vocabulary.backend.get_vocab()} for each in (part, task))
    return task.adopted(part.vocabulary) is not None and own <= whole
