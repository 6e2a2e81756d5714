"""What the command line tells of an evaluation: figures, by length too, as a table and a picture."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from minitx.data.examples import Stream
from minitx.data.framing import positions
from minitx.data.splits import SPLITS, Split
from minitx.data.tasks import TASKS, QuestionTask, Task, Text
from minitx.evaluation.bleu import text_scores
from minitx.evaluation.metrics import Scores, evaluate
from minitx.evaluation.perplexity import strided, text_figures
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.models.transformers import max_positions
from minitx.plotting.curves import Curve, accuracy_by_length

PER_LENGTH = 500
"""Examples of each length, where that many different ones are held out."""


def evaluation_report(
    predictor: Predictor,
    split: str | None = None,
    lengths: str | None = None,
    path: str | None = None,
    stride: int | None = None,
    options: GenerationOptions | None = None,
) -> dict[str, Any]:
    """Figures on a held-out split, and by length.

    Args:
        predictor: what to measure.
        split: test or validation; by default test, or validation for a text without a test part.
        lengths: "from:to", both included.
        path: another text, for a language model; other pairs in one file, for translation.
        stride: tokens between overlapping windows, for a language model; see perplexity.strided.
        options: how to write, for tasks whose answers are judged as texts (BLEU); greedily if left out.

    Raises:
        ValueError: an unknown split; lengths, a path, a stride or options where they make no sense.
    """
    asked = None if lengths is None else length_range(lengths, predictor.task)
    if path is not None:
        predictor = on_file(predictor, path)
    task = predictor.task
    if options not in (None, GenerationOptions()) and not task.metrics:
        raise ValueError(
            f"--num_beams is for answers that are judged as texts (BLEU); this model was trained on {_registered(task)}"
        )
    held_out = held_out_split(task, split)
    examples = task.examples(held_out)
    if stride is None:
        scores = _measure(predictor, examples)
    elif isinstance(examples, Stream):
        scores = strided(predictor.model, examples, stride, predictor.architecture, predictor.tokenizer.special)
    else:
        raise ValueError(f"--stride is for language models of text; this model was trained on {_registered(task)}")
    report: dict[str, Any] = {"split": held_out, **_figures(scores)}
    if isinstance(task, Text) and isinstance(examples, Stream):
        report |= text_figures(scores, examples, predictor.tokenizer)
    if stride is not None:
        report["stride"] = stride
    if task.metrics:
        report |= text_scores(predictor, task.sentences(held_out), options)
    if task.floor is not None:
        report["floor"] = task.floor
    if asked is not None:
        report["by_length"] = length_report(predictor, asked, held_out)
    return report


def on_file(predictor: Predictor, path: str) -> Predictor:
    """The same model of texts, asked about another file.

    Raises:
        ValueError: a model of something else.
    """
    task = predictor.task.on_file(path)
    if task is None:
        name = _registered(predictor.task)
        raise ValueError(f"--path is for language models and translation; this model was trained on {name}")
    task.vocabulary = predictor.tokenizer
    other = copy.copy(predictor)
    other.task = task
    return other


def length_report(predictor: Predictor, lengths: range, split: Split) -> dict[int, dict[str, Any]]:
    """Figures for each length of the question; one without a held-out question, or out of reach, is left out."""
    task, figures = predictor.task, {}
    assert isinstance(task, QuestionTask)
    limit = max_positions(predictor.model)
    for length in lengths:
        try:
            longer = task.of_length(length)
            longer.vocabulary = predictor.tokenizer
            examples = longer.examples(split, PER_LENGTH)
        except ValueError:  # there is no such question, or so few that none is held out
            continue
        if limit is not None and positions(predictor.architecture, longer.longest) > limit:
            break  # learned positions end here
        figures[length] = _figures(_measure(predictor, examples))
    return figures


def draw_lengths(report: dict[str, Any], predictor: Predictor, path: Path) -> None:
    """Draw accuracy against length, from a report that has figures by length."""
    by_length = report["by_length"]
    curves = [
        Curve(
            f"{name.replace('_', ' ')} ({_MEANINGS[name]})", [*by_length], [[part[name]] for part in by_length.values()]
        )
        for name in ("exact_match", "token_accuracy")
    ]
    title = f"{predictor.config.run.name}: accuracy by length"
    accuracy_by_length(path, curves, title, predictor.task.trained_lengths)


def length_range(lengths: str, task: Task) -> range:
    """The lengths that "from:to" names, both included.

    Raises:
        ValueError: written otherwise, or for a task that has no questions of several lengths.
    """
    first, separator, last = lengths.partition(":")
    if not (separator and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise ValueError(f"--lengths must be FROM:TO with 1 <= FROM <= TO, got {lengths}")
    if not (isinstance(task, QuestionTask) and task.has_lengths):
        raise ValueError(
            "--lengths is for tasks with questions and answers of several lengths; "
            f"this model was trained on {_registered(task)}"
        )
    return range(int(first), int(last) + 1)


def _measure(predictor: Predictor, examples: Any) -> Scores:
    special, free = predictor.tokenizer.special, not predictor.task.metrics  # texts are written apart, and only once
    return evaluate(predictor.model, examples, predictor.architecture, special, free)


def _figures(scores: Scores) -> dict[str, Any]:
    return {"examples": scores.examples, **scores.means()}


def _registered(task: Task) -> str:
    """The name of a task in the YAML."""
    return next(name for name, kind in TASKS.items() if kind is type(task))


def held_out_split(task: Task, split: str | None) -> Split:
    """The split that a word names; the task's own for a finished run where none is given.

    Raises:
        ValueError: neither test nor validation.
    """
    if split is None:
        return task.final_split
    if split not in SPLITS or split == "training":
        raise ValueError(f"--split must be test or validation, got {split}")
    return split  # type: ignore[return-value]


def table(report: dict[str, Any]) -> str:
    """A report as lines of text."""
    lines = [f"{report['examples']:,} examples held out for {report['split']}"]
    lines += [f"  {_spelt(name):<45} {_shown(name, report[name])}" for name in _MEANINGS if name in report]
    if "signatures" in report:
        lines += [f"  written {report['decoding']}; sacreBLEU's signatures:"]
        lines += [f"    {name:<15} {signature}" for name, signature in report["signatures"].items()]
    if report.get("by_length"):
        names = [name for name in _MEANINGS if name in next(iter(report["by_length"].values()))]
        lines += ["", "  length  examples  " + "  ".join(f"{name:>14}" for name in names)]
        for length, figures in report["by_length"].items():
            cells = "  ".join(f"{_shown(name, figures[name]):>14}" for name in names)
            lines.append(f"  {length:>6}  {figures['examples']:>8}  {cells}")
    return "\n".join(lines)


_MEANINGS = {
    "bleu": "free-running, 0 to 100",
    "bleu_lowercase": "the same in lower case",
    "chrf": "free-running, 0 to 100",
    "exact_match": "free-running, <eos> included",
    "token_accuracy": "teacher-forced",
    "loss": "nats per token, teacher-forced",
    "bits_per_token": "the same in bits",
    "bits_per_character": "of the text itself, whatever the tokens",
    "bits_per_byte": "of the text in UTF-8",
    "perplexity": "per token",
    "stride": "tokens between overlapping windows",
    "floor": "nats per token, what no model can beat",
}


def _spelt(name: str) -> str:
    return f"{name.replace('_', ' ')} ({_MEANINGS[name]})"


def _shown(name: str, value: float) -> str:
    if name == "stride":
        return str(value)
    if name in ("bleu", "bleu_lowercase", "chrf"):
        return f"{value:.2f}"
    return f"{100 * value:.2f} %" if name in ("exact_match", "token_accuracy") else f"{value:.4f}"
