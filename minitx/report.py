"""What the command line tells: figures of an evaluation, and the names that a config may use. No training in here."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from minitx.data.corpora import CORPORA
from minitx.data.splits import SPLITS, Split
from minitx.data.tasks import TASKS, QuestionTask, Task, Text
from minitx.data.tokenizers import TOKENIZERS
from minitx.evaluation import Scores, evaluate
from minitx.nn import POSITION_IDS, POSITIONS
from minitx.predictor import Predictor

PER_LENGTH = 500
"""Examples of each length, where that many different ones are held out."""


def evaluation_report(
    predictor: Predictor, split: str | None = None, lengths: str | None = None, path: str | None = None
) -> dict[str, Any]:
    """Figures on a held-out split, and by length.

    Args:
        predictor: what to measure.
        split: test or validation; by default test, or validation for a text without a test part.
        lengths: "from:to", both included.
        path: another text, for a language model.

    Raises:
        ValueError: an unknown split, lengths or a path where they make no sense.
    """
    task = predictor.task
    if path is not None:
        if not isinstance(task, Text):
            raise ValueError(f"--path is for language models of text; this model was trained on {_name(predictor)}")
        task = dataclasses.replace(task, path=path)
        task.vocabulary = predictor.tokenizer
    held_out = _split(task, split)
    report: dict[str, Any] = {"split": held_out, **_figures(_measure(predictor, task.examples(held_out)))}
    if task.floor is not None:
        report["floor"] = task.floor
    if lengths is not None:
        if not (isinstance(task, QuestionTask) and task.has_lengths):
            raise ValueError(
                "--lengths is for tasks with questions and answers of several lengths; "
                f"this model was trained on {_name(predictor)}"
            )
        report["by_length"] = {}
        for length in _range(lengths):
            try:
                longer = task.of_length(length)
                longer.vocabulary = predictor.tokenizer
                examples = longer.examples(held_out, PER_LENGTH)
            except ValueError:  # there is no such question, or so few that none is held out
                continue
            report["by_length"][length] = _figures(_measure(predictor, examples))
    return report


def _measure(predictor: Predictor, examples: Any) -> Scores:
    return evaluate(predictor.model, examples, predictor.architecture, predictor.tokenizer.special)


def _figures(scores: Scores) -> dict[str, Any]:
    return {"examples": scores.examples, **scores.means()}


def _name(predictor: Predictor) -> str:
    return predictor.config.data["name"]


def _split(task: Task, split: str | None) -> Split:
    if split is None:
        return task.final_split
    if split not in SPLITS or split == "training":
        raise ValueError(f"--split must be test or validation, got {split}")
    return split  # type: ignore[return-value]


def _range(lengths: str) -> range:
    first, separator, last = lengths.partition(":")
    if not (separator and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise ValueError(f"--lengths must be FROM:TO with 1 <= FROM <= TO, got {lengths}")
    return range(int(first), int(last) + 1)


def table(report: dict[str, Any]) -> str:
    """A report as lines of text."""
    lines = [f"{report['examples']:,} examples held out for {report['split']}"]
    lines += [f"  {_spelt(name):<45} {_shown(name, report[name])}" for name in _MEANINGS if name in report]
    if report.get("by_length"):
        names = [name for name in _MEANINGS if name in next(iter(report["by_length"].values()))]
        lines += ["", "  length  examples  " + "  ".join(f"{name:>14}" for name in names)]
        for length, figures in report["by_length"].items():
            cells = "  ".join(f"{_shown(name, figures[name]):>14}" for name in names)
            lines.append(f"  {length:>6}  {figures['examples']:>8}  {cells}")
    return "\n".join(lines)


_MEANINGS = {
    "exact_match": "free-running, <eos> included",
    "token_accuracy": "teacher-forced",
    "loss": "nats per token, teacher-forced",
    "bits_per_token": "the same in bits",
    "floor": "nats per token, what no model can beat",
}


def _spelt(name: str) -> str:
    return f"{name.replace('_', ' ')} ({_MEANINGS[name]})"


def _shown(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name in ("exact_match", "token_accuracy") else f"{value:.4f}"


def listing() -> str:
    """Every registered name with its first line of help and its options."""
    lines: list[str] = []
    for key, registry in (
        ("data.name", TASKS),
        ("data.path (or a file, a folder, owner/name on the hub)", CORPORA),
        ("data.tokenizer.name", TOKENIZERS),
        ("model.position.name", POSITIONS),
        ("model.position_ids.name", POSITION_IDS),
    ):
        lines.append(key)
        for name, thing in registry.items():
            summary = (inspect.getdoc(thing) or "").splitlines()[0]
            lines.append(f"  {name:<18} {summary}{_options(thing)}")
    return "\n".join(lines)


def _options(thing: Any) -> str:
    """A class's own options with their defaults."""
    if not inspect.isclass(thing):
        return ""
    context = {"d_model", "n_heads", "d_head", "causal", "self", "args", "kwargs"}
    parameters = inspect.signature(thing).parameters.values()
    own = [f"{p.name}={_default(thing, p)}" for p in parameters if p.name not in context]
    return f"  [{', '.join(own)}]" if own else ""


def _default(thing: Any, parameter: inspect.Parameter) -> Any:
    if dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            if field.name == parameter.name and field.default_factory is not dataclasses.MISSING:
                return field.default_factory()
    return parameter.default
