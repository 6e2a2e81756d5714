"""The report of `minitx evaluate`: figures, also by length, as a table and a plot."""

import copy
import re
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from minitx.config.errors import ConfigError
from minitx.data.example_texts import counted_examples, held_out_split
from minitx.data.examples import Masked, Stream, positions
from minitx.data.splits import Split
from minitx.data.tasks import TASKS, QuestionTask, Task, Text
from minitx.data.text.work_progress import progress
from minitx.evaluation.bleu import text_scores
from minitx.evaluation.metrics import evaluate
from minitx.evaluation.perplexity import count_unknown, strided, text_figures
from minitx.generation.options import GenerationOptions
from minitx.hardware.memory import freed_memory_kept
from minitx.inference.predictor import Predictor
from minitx.models.transformers import max_positions

EXAMPLES_PER_LENGTH = 500  # at most


@freed_memory_kept()
def evaluation_report(
    predictor: Predictor,
    split: str | None = None,
    lengths: str | None = None,
    stride: int | None = None,
    options: GenerationOptions | None = None,
) -> dict[str, Any]:
    """Figures on a held-out split or on a file (see on_file), and by length.

    Args:
        split: test or validation; by default the task's final split.
        lengths: "from:to", both included.
        stride: for a language model: tokens between overlapping windows, see perplexity.strided.
        options: of generation, for tasks whose answers are scored as texts (BLEU); greedy by default.
    """
    requested = None if lengths is None else length_range(lengths, predictor.task)
    task, path = predictor.task, predictor.task.evaluated_file or None
    if options not in (None, GenerationOptions()) and not task.metrics:
        raise _unsuitable(task, "--num_beams is for answers that are scored as texts (BLEU)")
    held_out = held_out_split(task, split)
    limit = None if stride is None or task.kind != "stream" else sys.maxsize  # every block
    examples = task.examples(held_out, limit)
    blocks = examples if isinstance(task, Text) and isinstance(examples, Stream) else None
    running_text = blocks if blocks is not None and blocks.documents is None else None
    how = predictor.architecture, predictor.tokenizer.special
    if stride is None:
        show: Any = partial(progress, label="evaluating", size=len, total=len(examples), unit=" examples")
        scores = evaluate(predictor.model, examples, *how, not task.metrics, show)  # text_scores generates its own
    elif running_text is not None:
        scores = strided(predictor.model, running_text, stride, predictor.tokenizer.special)
    elif blocks is not None:
        raise ConfigError("--stride is for running text, and data.isolate masks attention between its documents")
    else:
        raise _unsuitable(task, "--stride is for language models of text")
    if not scores.tokens:
        found = counted_examples(scores.examples, held_out, path)
        raise ConfigError(f"{found}: there is no token to predict, as in a text of <unk> or padding alone")
    report: dict[str, Any] = {"split": held_out, "examples": scores.examples, **scores.means()}
    if path is not None:
        report["path"] = path
    if running_text is not None and isinstance(task, Text):
        report |= text_figures(scores, running_text, predictor.tokenizer, task.unknown_extent(held_out, limit))
    if isinstance(examples, Masked):  # whose <unk> are never masked, so that no other figure has them
        ids = examples.target[examples.source_keep]
        if unknown := count_unknown(ids, predictor.tokenizer.special):
            report["unknown_tokens"] = unknown / len(ids)
    if stride is not None:
        report["stride"] = stride
    if task.metrics:
        report |= text_scores(predictor, task.sentences(held_out), options)
    if task.floor is not None:
        report["floor"] = task.floor
    if requested is not None:
        report["lengths"] = [requested[0], requested[-1]]
        report["by_length"] = length_report(predictor, requested, held_out)
    return report


def on_file(predictor: Predictor, path: str) -> Predictor:
    """The same predictor with its task on another file: a text for a language model, pairs for translation."""
    task = predictor.task.on_file(path)
    if task is None:
        raise _unsuitable(predictor.task, "--path is for the tasks text, masked_text and translation")
    task.vocabulary = predictor.tokenizer
    if isinstance(task, Text) and task.column != getattr(predictor.task, "column", task.column):
        print(f"minitx: {path}: its only column of text is read, {task.column}", file=sys.stderr)
    if task.kind == "pairs":
        predictor.checked(task.examples(task.final_split).frame(predictor.architecture, predictor.tokenizer.special))
        for note in task.notes:
            print(f"minitx: {path}: {note}", file=sys.stderr)
    other = copy.copy(predictor)
    other.task = task
    return other


def data_has_changed(predictor: Predictor) -> bool:
    """Whether the files of a task's data differ from those of training; False if either is unknown."""
    before, now = predictor.data_digest[16:], ""  # without the hash of examples, which needs every text encoded
    with suppress(ConfigError):  # translation is evaluated without its training files
        now = before and getattr(predictor.task, "fingerprint", "")
    return bool(now) and now != before


def length_report(predictor: Predictor, lengths: range, split: Split) -> dict[int, dict[str, Any]]:
    """Figures for each length of the question; lengths without held-out questions or positions are skipped."""
    task, special, figures = predictor.task, predictor.tokenizer.special, {}
    assert isinstance(task, QuestionTask)
    for length in progress(lengths, "by length", total=len(lengths), unit=" lengths"):
        try:
            of_length = task.of_length(length)
            of_length.vocabulary = predictor.tokenizer
            examples = of_length.examples(split, EXAMPLES_PER_LENGTH)
        except ConfigError:  # too few questions of this length for a held-out set, or none
            continue
        needed = positions(predictor.architecture, of_length.reach)
        if any(tokens > (max_positions(getattr(predictor.model, stack)) or tokens) for stack, tokens in needed.items()):
            break  # the end of a table of learned positions
        scores = evaluate(predictor.model, examples, predictor.architecture, special, not task.metrics)
        figures[length] = {"examples": scores.examples, **scores.means()}
    return figures


def length_range(lengths: str, task: Task) -> range:
    """Parse "from:to", both included, for a task with questions of several lengths."""
    found = re.fullmatch("([0-9]{1,7}):([0-9]{1,7})", lengths)
    first, last = map(int, found.groups()) if found else (1, 0)
    if not 1 <= first <= last:
        raise ConfigError(f"--lengths must be FROM:TO with 1 <= FROM <= TO < 10,000,000, got {lengths:.80}")
    if not (isinstance(task, QuestionTask) and task.has_lengths):
        raise _unsuitable(task, "--lengths is for tasks that sample questions of a given length")
    return range(first, last + 1)


def _unsuitable(task: Task, sentence: str) -> ConfigError:
    name = next(name for name, kind in TASKS.items() if kind is type(task))
    return ConfigError(f"{sentence}; this model was trained on {name}")


# ---- as text and as a plot -------------------------------------------------------------------------------------------

MEANINGS = {
    "bleu": ("free-running, 0 to 100", ".2f"),
    "bleu_lowercase": ("the same in lower case", ".2f"),
    "chrf": ("free-running, 0 to 100", ".2f"),
    "exact_match": ("free-running, <eos> included", ".2%"),
    "token_accuracy": ("teacher-forced", ".2%"),
    "loss": ("nats per token, teacher-forced", ".4f"),
    "bits_per_token": ("the same in bits", ".4f"),
    "bits_per_character": ("of the text, for any tokenizer", ".4f"),
    "bits_per_byte": ("of the text in UTF-8", ".4f"),
    "unknown_tokens": ("the share of <unk>", ".2%"),
    "perplexity": ("per token", ".4f"),
    "stride": ("tokens between overlapping windows", "d"),
    "floor": ("nats per token, the minimum for any model", ".4f"),
}
"""Figures in the order of the table: what they mean, and their format."""


def table(report: dict[str, Any]) -> str:
    """A report as lines of text."""
    lines = [counted_examples(report["examples"], report["split"], report.get("path"))]
    titles = {name: _title(name) for name in MEANINGS if name in report}
    width = max([45, *map(len, titles.values())])
    lines += [f"  {title:<{width}} {_formatted(name, report[name])}" for name, title in titles.items()]
    if "signatures" in report:
        lines += [f"  decoding: {report['decoding']}; sacreBLEU's signatures:"]
        lines += [f"    {name:<15} {signature}" for name, signature in report["signatures"].items()]
    if report.get("by_length") == {}:
        lines += ["", "  by length: no held-out questions of these lengths within the model's positions"]
    elif "by_length" in report:
        names = [name for name in MEANINGS if name in next(iter(report["by_length"].values()))]
        lines += ["", "  length  examples  " + "  ".join(f"{name:>14}" for name in names)]
        for length, figures in report["by_length"].items():
            cells = "  ".join(f"{_formatted(name, figures[name]):>14}" for name in names)
            lines.append(f"  {length:>6}  {figures['examples']:>8}  {cells}")
        if report["lengths"][1] > max(report["by_length"]):
            lines.append("  longer ones have no held-out questions, or no positions in the model")
    return "\n".join(lines)


def draw_lengths(report: dict[str, Any], predictor: Predictor, path: Path) -> None:
    """Plot the accuracies of a report by length."""
    from minitx.plotting.curves import Curve, accuracy_by_length

    by_length, names = report["by_length"], ("exact_match", "token_accuracy")
    curves = [Curve(_title(name), [*by_length], [[part[name]] for part in by_length.values()]) for name in names]
    accuracy_by_length(path, curves, f"{predictor.config.run.name}: accuracy by length", predictor.task.trained_lengths)


def _title(name: str) -> str:
    return f"{name.replace('_', ' ')} ({MEANINGS[name][0]})"


def _formatted(name: str, value: float) -> str:
    return format(value, MEANINGS[name][1]).replace("%", " %")
