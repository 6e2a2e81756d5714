"""The importance of each part: how much worse a model gets without it (Michel et al. 2019, Voita et al. 2019).

A part is a head, a feed-forward network or one of its neurons. Its output is replaced in every row, in generation too:
by zeros, by its mean over the examples, or by that of another example (resampling, Chan et al. 2022). This measures the
loss of a part from a model that was trained with it; a model trained without it might have reached the same metrics.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.example_texts import counted_examples, held_out_split
from minitx.data.examples import Examples
from minitx.data.loader import fixed_batches
from minitx.data.splits import Split
from minitx.data.text.work_progress import progress
from minitx.evaluation.metrics import evaluate, evaluating, rows_at_once
from minitx.inference.predictor import Predictor
from minitx.interpret.intervene import intervene, mean_activations
from minitx.interpret.parts import Part, in_place_of, named_parts
from minitx.interpret.task_statistics import task_statistics
from minitx.tensorboard.map_format import Named, strongest

By = Literal["zero", "mean", "resample"]
"""Replacements of the output of a part."""


@dataclass(frozen=True)
class Ablated:
    """The metrics of the model without some parts."""

    parts: tuple[Part, ...]
    named: Named | None  # the pattern that all of them follow, heads all, with their lowest value
    metrics: dict[str, float]  # loss, token_accuracy, and exact_match of tasks that have it

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        pattern, value = self.named or (None, None)
        return {"parts": [*map(str, self.parts)], "pattern": pattern, "value": value, **self.metrics}


@dataclass(frozen=True)
class Ablation:
    """The metrics of a model without each of its parts."""

    split: Split
    by: By
    examples: int
    baseline: dict[str, float]  # metrics with all parts
    parts: list[Ablated]  # each part alone, in the order of the model
    groups: list[Ablated]  # the heads of one kind that follow the same pattern; then the requested group
    path: str | None = None  # of the file that the examples are from, if not that of training

    def damage(self, ablated: Ablated, metric: str) -> float:
        """The change of a metric without these parts, positive for damage."""
        change = ablated.metrics[metric] - self.baseline[metric]
        return change if metric == "loss" else -change

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        rows = {name: [row.to_dict() for row in getattr(self, name)] for name in ("parts", "groups")}
        source = {"split": self.split, "path": self.path, "examples": self.examples}
        return {"by": self.by, **source, "whole": self.baseline, **rows}


def ablate(
    predictor: Predictor,
    split: Split | None = None,
    examples: int = 500,
    together: str | Sequence[str | Part] = (),
    parts: str = "heads",
    by: By = "zero",
) -> Ablation:
    """Evaluate the model without each part in turn, then without all heads of a kind that follow the same pattern.

    Args:
        split: of the examples; the task's final split by default.
        examples: at most this many, for the metrics, the statistics of the heads and the means.
        together: a further group of parts to ablate at the same time, named as those of `parts`.
        parts: which parts in turn: "heads", "ffn" for feed-forward networks, or names, separated by commas.
        by: what replaces a part's output: zeros, its mean over all tokens, or the output in another example of the
            same batch, at the same index, which is padding if that example is shorter.

    Raises:
        ConfigError: too few examples, or too long ones; an unknown split; a part that this model does not have.
    """
    if by not in get_args(By):
        raise ConfigError(f"--by must be {', '.join(get_args(By))}, got {by}")
    least = 2 if by == "resample" else 1
    if examples < least:
        raise ConfigError(f"--examples must be at least {least}, got {examples}")
    listed = named_parts(predictor.model, parts, "--parts")
    group = tuple(named_parts(predictor.model, together, "--together")) if together else ()
    split = held_out_split(predictor.task, split)
    heads = [part for part in listed if not part.ffn]
    held_out = predictor.task.examples(split, examples)
    names = {
        Part(kind, layer, head): named
        for kind, statistics in (task_statistics(predictor, examples, split) if heads else {}).items()
        for layer, row in enumerate(strongest(statistics), start=1)
        for head, named in enumerate(row, start=1)
        if named is not None
    }
    by_pattern: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for head in (head for head in heads if head in names):
        by_pattern[head.kind, names[head].pattern].append(head)
    groups = [(part,) for part in listed] + [tuple(heads) for heads in by_pattern.values() if len(heads) > 1]
    groups += [group] if group else []
    means = mean_outputs(predictor, [*listed, *group], held_out) if by == "mean" else {}
    evaluations = (_evaluate_without(predictor, ablated, held_out, by, means) for ablated in [(), *groups])
    baseline, *metrics = progress(evaluations, "ablating", total=1 + len(groups))
    rows = [
        Ablated(ablated, _common([names.get(part) for part in ablated]), found)
        for ablated, found in zip(groups, metrics, strict=True)
    ]
    file = predictor.task.evaluated_file or None
    return Ablation(split, by, len(held_out), baseline, rows[: len(listed)], rows[len(listed) :], file)


def _common(names: Sequence[Named | None]) -> Named | None:
    """The pattern that all heads have in common, with the lowest value; None if they differ."""
    found = [named for named in names if named]
    alike = len(found) == len(names) and len({named.pattern for named in found}) == 1
    return min(found, key=lambda named: named.value) if alike else None


def _evaluate_without(
    predictor: Predictor, ablated: Sequence[Part], examples: Examples, by: By, means: dict[str, Tensor]
) -> dict[str, float]:
    generator, donors = torch.Generator().manual_seed(0), 0

    def resampled(value: Tensor) -> Tensor:
        """Roll the rows of a batch by one random number: each row gets the value of another."""
        nonlocal donors
        donors = max(donors, len(value))
        return value.roll(int(torch.randint(1, max(2, len(value)), (), generator=generator)), 0)

    changes = in_place_of(ablated, resampled if by == "resample" else by)
    free_running = not predictor.task.metrics  # exact match means nothing for tasks with text metrics
    special = predictor.tokenizer.special
    with intervene(predictor.model, changes, means):
        scores = evaluate(predictor.model, examples, predictor.architecture, special, free_running).means()
    if by == "resample" and donors == 1:
        raise ConfigError("--by resample needs two examples in a batch: use more or shorter ones, or --by mean")
    return {name: scores[name] for name in ("loss", "token_accuracy", "exact_match") if name in scores}


def mean_outputs(predictor: Predictor, parts: Iterable[Part], examples: Examples) -> dict[str, Tensor]:
    """The mean outputs of these parts over all tokens of the examples."""
    special, model = predictor.tokenizer.special, predictor.model
    slices = fixed_batches(examples, rows_at_once(model, examples.width))
    batches = (part.to(predictor.device).frame(predictor.architecture, special) for part in slices)
    with evaluating(model):
        return mean_activations(model, batches, special.pad, {part.site for part in parts})


def table(ablation: Ablation) -> str:
    """The metrics as lines of text, the worst loss first."""
    share = "exact_match" if "exact_match" in ablation.baseline else "token_accuracy"

    def cells(parts: str, pattern: str, metrics: dict[str, float]) -> list[str]:
        return [parts, pattern, f"{metrics['loss']:.4f}", f"{100 * metrics[share]:.2f} %"]

    rows = [["without", "pattern", "loss", share.replace("_", " ")], cells("nothing", "", ablation.baseline)]
    for part in (ablation.parts, ablation.groups):
        for ablated in sorted(part, key=lambda ablated: ablated.metrics["loss"], reverse=True):
            named = f"{ablated.named.pattern} {ablated.named.value:.2f}" if ablated.named else ""
            rows.append(cells(" ".join(map(str, ablated.parts)), named, ablated.metrics))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    source = counted_examples(ablation.examples, ablation.split, ablation.path)
    title = f"metrics without some parts ({ablation.by} ablation), on {source}"
    layout = "".join(f"  {{:{side}{width}}}" for side, width in zip("<<>>", widths, strict=True))
    return "\n".join([title, *(layout.format(*row) for row in rows)])
