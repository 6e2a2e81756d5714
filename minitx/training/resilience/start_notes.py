"""What the checkpoint that a run starts from changes in the run, in lines to print before it."""

from minitx.checkpoints import format as checkpoint
from minitx.config.schema import Config
from minitx.data.batch import IGNORE
from minitx.data.tasks import Task, generator
from minitx.training.resolve import ResolvedRun
from minitx.training.start import described


def start_notes(run: ResolvedRun) -> list[str]:
    """The step that a run resumes after or the weights that it starts from, and the settings that differ."""
    start, task, found = run.start, run.task, run.changes
    if start is None:
        return []
    if start.resumes:
        lines = [f"--resume: continues after step {start.step:,}"]
        if task.sampling == 1:
            lines.append("--resume: training examples are sampled as by the earlier version that began this run")
        newest = checkpoint.versions(start.file.parent.parent)[-1:]
        if newest and newest[0].name != start.file.parent.name:
            lines.append(f"--resume: {newest[0]} has no last.ckpt, it ended before its first save")
        return [*lines, f"--resume: {described(found)}"] if found else lines
    lines = [f"--init_from: the weights of {start.path} ({start.config.run.name})"]
    lines += [f"--init_from: {described({key: pair})}" for key, pair in found.items()]
    if task.vocabulary.to_dict() != start.tokenizer.to_dict():
        lines.append("--init_from: this task has its own tokens: ids differ in meaning from the checkpoint's")
    elif unknown := _unknown_share(run.config, task):
        lines.append(f"--init_from: {unknown:.1%} of its training tokens are <unk>, unknown to the tokenizer")
    return lines


def _unknown_share(config: Config, task: Task) -> float:
    """The share of <unk> among the labels of one batch."""
    special = task.vocabulary.special
    labels = task.batch(generator(0), task.batch_size).frame(config.model.architecture, special).labels
    return float((labels == special.unk).sum() / (labels != IGNORE).sum())
