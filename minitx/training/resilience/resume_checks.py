"""--resume: what may differ from the run that is resumed, and what the user reads about it."""

from __future__ import annotations

from typing import Any

from minitx.checkpoints import format as checkpoint
from minitx.config.schema import Config, changes
from minitx.data.tasks import Task
from minitx.training.resume import Resumed, data_digest

MAY_CHANGE = ("data.batch_size", "data.validation_size", "data.test_size", "data.path", "data.streaming")
"""Keys of `data` that may be others from now on: they change neither what tokens mean nor who is held out. Of other
sections only `model` and optimizer.name may not change."""


def check_resume(before: Resumed, config: Config, task: Task) -> list[str]:
    """Check a run that is to be resumed.

    Args:
        before: the run.
        config: resolved, of now.
        task: the config's.

    Returns:
        Sentences for the user.

    Raises:
        ValueError: see changed; or settings that are others now, and no steps to be done with them.
    """
    found = changed(before, config, task)
    if before.results(config) is None:
        return going_on(before, found)
    done = f"{before.file.parent} has done its {before.step:,} steps already; a larger trainer.max_steps goes on"
    if found:
        raise ValueError(f"--resume: {done} with {_described(found)}")
    return [f"--resume: {done}"]


def changed(before: Resumed, config: Config, task: Task) -> dict[str, tuple[Any, Any]]:
    """The settings that are not what they were, by dotted key.

    Args:
        before: the run that is to go on.
        config: resolved, of now.
        task: the config's.

    Raises:
        ValueError: a change with which the run would not be the same run, or one that leaves nothing to do.
    """
    found = changes(before.config.to_dict(), config.to_dict())
    found = {key: pair for key, pair in found.items() if key not in ("run.name", "run.folder", "run.init_from")}
    folder = before.file.parent
    instead = f"start a new run, or begin one with these weights: --init_from {folder}"
    for key, (old, new) in found.items():
        if key.startswith(("model.", "data.", "optimizer.name")) and key not in MAY_CHANGE:
            raise ValueError(f"--resume: {folder} was trained with {key} {old!r}, not {new!r}; {instead}")
    same = any(key.startswith("data.") for key in found) or before.digest in (None, data_digest(task))
    if not same or task.vocabulary.to_dict() != before.tokenizer.to_dict():
        raise ValueError(f"--resume: the data is no longer what {folder} was trained on; {instead}")
    if before.step > config.trainer.max_steps:
        raise ValueError(
            f"--resume: trainer.max_steps must be larger than {before.step:,}, the steps that {before.file} has done, "
            f"got {config.trainer.max_steps:,}"
        )
    return found


def going_on(before: Resumed, found: dict[str, tuple[Any, Any]]) -> list[str]:
    """What whoever resumes should read: where the run goes on, and with which other settings."""
    lines = [f"--resume: goes on behind step {before.step:,}"]
    newest = checkpoint.versions(before.file.parent.parent)[-1:]
    if newest and newest[0].name != before.file.parent.name:
        lines.append(f"--resume: {newest[0]} has no last.ckpt, it ended before its first save")
    return [*lines, f"--resume: {_described(found)}"] if found else lines


def _described(found: dict[str, tuple[Any, Any]]) -> str:
    """Changed settings in a line: trainer.max_steps 500 -> 800, optimizer.lr 0.005 -> 0.001."""
    return ", ".join(f"{key} {old} -> {new}" for key, (old, new) in found.items())
