"""The importance of each head: how much worse a model gets without it (Michel et al. 2019, Voita et al. 2019).

An ablated head has zeros for its output, in every row, in generation too. This measures the loss of a head from a
model that was trained with it; a model trained without the head might have reached the same metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minitx.config.errors import ConfigError
from minitx.data.examples import Examples
from minitx.data.splits import Split
from minitx.data.text.work_progress import progress
from minitx.evaluation.metrics import evaluate
from minitx.inference.predictor import Predictor
from minitx.interpret.attention_maps import kind_of
from minitx.interpret.recording import attention_modules, head_mask
from minitx.interpret.task_statistics import task_statistics
from minitx.models.transformers import Transformer
from minitx.tensorboard.map_format import Named, strongest

MAX_EXAMPLES = 500
"""Held-out examples that the ablated model is evaluated on, by default."""


class HeadName(NamedTuple):
    """One head, layers and heads counted from 1, such as cross.2.1."""

    kind: str  # encoder, decoder or cross
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.{self.head}"


@dataclass(frozen=True)
class AblatedHeads:
    """The metrics of the model without some heads."""

    heads: tuple[HeadName, ...]
    named: Named | None  # the pattern that all of them follow, with their lowest value
    metrics: dict[str, float]  # of evaluation.Scores: loss, token_accuracy, and exact_match where there are answers

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        pattern, value = self.named or (None, None)
        return {"heads": [*map(str, self.heads)], "pattern": pattern, "value": value, **self.metrics}


@dataclass(frozen=True)
class Ablation:
    """The metrics of a model without each of its heads."""

    split: Split
    examples: int
    baseline: dict[str, float]  # metrics with all heads
    heads: list[AblatedHeads]  # each head alone, in the order of the model
    groups: list[AblatedHeads]  # the heads of one kind that follow the same pattern; then the requested group

    def damage(self, ablated: AblatedHeads, metric: str) -> float:
        """How much worse a metric is without these heads, positive for damage."""
        change = ablated.metrics[metric] - self.baseline[metric]
        return change if metric == "loss" else -change

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "split": self.split,
            "examples": self.examples,
            "whole": self.baseline,
            "heads": [ablated.to_dict() for ablated in self.heads],
            "groups": [ablated.to_dict() for ablated in self.groups],
        }


def ablate(
    predictor: Predictor,
    split: Split | None = None,
    examples: int = MAX_EXAMPLES,
    together: Sequence[HeadName] = (),
) -> Ablation:
    """Evaluate the model without each head in turn, then without all heads of a kind that follow the same pattern.

    Args:
        predictor: the model whose heads to ablate.
        split: of the examples; the task's final split by default.
        examples: at most this many, for the metrics and for the statistics of the heads.
        together: a further group of heads to ablate at the same time.

    Raises:
        ConfigError: fewer than one example; a head that this model does not have.
    """
    if examples < 1:
        raise ConfigError(f"--examples must be at least 1, got {examples}")
    existing = all_heads(predictor.model)
    for head in together:
        if head not in existing:
            last = {head.kind: head for head in existing}.values()
            shape = ", ".join(f"{head.kind}.1.1 to {head}" for head in last)
            raise ConfigError(f"--heads: there is no head {head} in this model, which has {shape}")
    split = split or predictor.task.final_split
    held_out = predictor.task.examples(split, examples)
    names = {
        HeadName(kind, layer, head): named
        for kind, statistics in task_statistics(predictor, held_out).items()
        for layer, row in enumerate(strongest(statistics), start=1)
        for head, named in enumerate(row, start=1)
        if named is not None
    }
    by_pattern: dict[tuple[str, str], list[HeadName]] = {}
    for head, named in names.items():
        by_pattern.setdefault((head.kind, named.pattern), []).append(head)
    groups = [(head,) for head in existing] + [tuple(heads) for heads in by_pattern.values() if len(heads) > 1]
    groups += [tuple(together)] if together else []
    evaluations = (_evaluate_without(predictor, heads, held_out) for heads in [(), *groups])
    baseline, *metrics = progress(evaluations, "ablating heads", total=1 + len(groups))
    rows = [
        AblatedHeads(heads, _common([names.get(head) for head in heads]), found)
        for heads, found in zip(groups, metrics, strict=True)
    ]
    return Ablation(split, len(held_out), baseline, rows[: len(existing)], rows[len(existing) :])


def all_heads(model: Transformer) -> list[HeadName]:
    """Every head of a model, stack by stack and layer by layer."""
    return [head for _, heads in _by_module(model) for head in heads]


def parse_heads(text: str) -> list[HeadName]:
    """Parse a list such as cross.2.1,cross.2.2.

    Raises:
        ConfigError: not KIND.LAYER.HEAD.
    """
    heads = []
    for word in text.split(","):
        kind, *numbers = word.strip().split(".")
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            raise ConfigError(f"--heads must be KIND.LAYER.HEAD,..., such as decoder.1.2,decoder.2.1, got {text}")
        heads.append(HeadName(kind, int(numbers[0]), int(numbers[1])))
    return heads


def table(ablation: Ablation) -> str:
    """The metrics as lines of text, the worst loss first."""
    shares = [metric for metric in ("exact_match", "token_accuracy") if metric in ablation.baseline][:1]

    def cells(heads: str, pattern: str, metrics: dict[str, float]) -> list[str]:
        return [heads, pattern, f"{metrics['loss']:.4f}", *(f"{100 * metrics[share]:.2f} %" for share in shares)]

    rows = [["without", "pattern", "loss", *(share.replace("_", " ") for share in shares)]]
    rows.append(cells("nothing", "", ablation.baseline))
    for part in (ablation.heads, ablation.groups):
        for ablated in sorted(part, key=lambda ablated: ablated.metrics["loss"], reverse=True):
            named = f"{ablated.named.pattern} {ablated.named.value:.2f}" if ablated.named else ""
            rows.append(cells(" ".join(map(str, ablated.heads)), named, ablated.metrics))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"metrics without some heads, on {ablation.examples:,} examples held out for {ablation.split}"]
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join(["", *left, *right]).rstrip())
    return "\n".join(lines)


def _by_module(model: Transformer) -> Iterable[tuple[str, list[HeadName]]]:
    """The path of each attention module, kind by kind, with its heads."""
    kinds: dict[str, list[tuple[str, int]]] = {}
    for path, module in attention_modules(model).items():
        kinds.setdefault(kind_of(path), []).append((path, module.n_heads))
    for kind, modules in kinds.items():
        for layer, (path, n_heads) in enumerate(modules, start=1):
            yield path, [HeadName(kind, layer, head) for head in range(1, n_heads + 1)]


def _evaluate_without(predictor: Predictor, ablated: Sequence[HeadName], examples: Examples) -> dict[str, float]:
    masks = {
        path: [float(head not in ablated) for head in heads]
        for path, heads in _by_module(predictor.model)
        if not set(ablated).isdisjoint(heads)
    }
    free_running = not predictor.task.metrics  # exact match means nothing for tasks with text metrics
    special = predictor.tokenizer.special
    with head_mask(predictor.model, masks):
        means = evaluate(predictor.model, examples, predictor.architecture, special, free_running).means()
    return {name: means[name] for name in ("loss", "token_accuracy", "exact_match") if name in means}


def _common(names: Sequence[Named | None]) -> Named | None:
    """The pattern of all heads, with their lowest value; None where they differ."""
    found = [named for named in names if named]
    if len(found) < len(names) or len({named.pattern for named in found}) != 1:
        return None
    return min(found, key=lambda named: named.value)
