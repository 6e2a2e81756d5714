"""The importance of each head: how much worse a model gets without it (Michel et al. 2019, Voita et al. 2019).

An ablated head has zeros for its output, in every row, in generation too. This measures the loss of a head from a
model that was trained with it; a model trained without the head might have reached the same metrics.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minitx.config.errors import ConfigError
from minitx.data.examples import Examples
from minitx.data.splits import Split
from minitx.data.text.work_progress import progress
from minitx.evaluation.metrics import evaluate
from minitx.inference.predictor import Predictor
from minitx.interpret.attention_maps import kind_of
from minitx.interpret.intervene import head_mask
from minitx.interpret.recording import attention_modules
from minitx.interpret.task_statistics import task_statistics
from minitx.models.transformers import Transformer
from minitx.tensorboard.map_format import Named, strongest


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
    metrics: dict[str, float]  # loss, token_accuracy, and exact_match where there are answers

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
        rows = {name: [row.to_dict() for row in getattr(self, name)] for name in ("heads", "groups")}
        return {"split": self.split, "examples": self.examples, "whole": self.baseline, **rows}


def ablate(
    predictor: Predictor, split: Split | None = None, examples: int = 500, together: Sequence[HeadName] = ()
) -> Ablation:
    """Evaluate the model without each head in turn, then without all heads of a kind that follow the same pattern.

    Args:
        split: of the examples; the task's final split by default.
        examples: at most this many, for the metrics and for the statistics of the heads.
        together: a further group of heads to ablate at the same time.

    Raises:
        ConfigError: fewer than one example; a head that this model does not have.
    """
    if examples < 1:
        raise ConfigError(f"--examples must be at least 1, got {examples}")
    existing = [*head_paths(predictor.model)]
    for head in together:
        if head not in existing:
            last = {head.kind: head for head in existing}.values()
            shape = ", ".join(f"{head.kind}.1.1 to {head}" for head in last)
            raise ConfigError(f"--heads: there is no head {head} in this model, which has {shape}")
    split = split or predictor.task.final_split
    held_out = predictor.task.examples(split, examples)
    names = {
        HeadName(kind, layer, head): named
        for kind, statistics in task_statistics(predictor, examples, split).items()
        for layer, row in enumerate(strongest(statistics), start=1)
        for head, named in enumerate(row, start=1)
        if named is not None
    }
    by_pattern: dict[tuple[str, str], list[HeadName]] = defaultdict(list)
    for head, named in names.items():
        by_pattern[head.kind, named.pattern].append(head)
    groups = [(head,) for head in existing] + [tuple(heads) for heads in by_pattern.values() if len(heads) > 1]
    groups += [tuple(together)] if together else []
    evaluations = (_evaluate_without(predictor, heads, held_out) for heads in [(), *groups])
    baseline, *metrics = progress(evaluations, "ablating heads", total=1 + len(groups))
    rows = [
        AblatedHeads(heads, _common([names.get(head) for head in heads]), found)
        for heads, found in zip(groups, metrics, strict=True)
    ]
    return Ablation(split, len(held_out), baseline, rows[: len(existing)], rows[len(existing) :])


def _common(names: Sequence[Named | None]) -> Named | None:
    """The pattern of all heads, with their lowest value; None where they differ."""
    found = [named for named in names if named]
    alike = len(found) == len(names) and len({named.pattern for named in found}) == 1
    return min(found, key=lambda named: named.value) if alike else None


def _evaluate_without(predictor: Predictor, ablated: Sequence[HeadName], examples: Examples) -> dict[str, float]:
    masks: dict[str, list[float]] = defaultdict(list)
    for head, path in head_paths(predictor.model).items():
        masks[path].append(float(head not in ablated))
    free_running = not predictor.task.metrics  # exact match means nothing for tasks with text metrics
    special = predictor.tokenizer.special
    with head_mask(predictor.model, {path: mask for path, mask in masks.items() if 0.0 in mask}):
        means = evaluate(predictor.model, examples, predictor.architecture, special, free_running).means()
    return {name: means[name] for name in ("loss", "token_accuracy", "exact_match") if name in means}


def head_paths(model: Transformer) -> dict[HeadName, str]:
    """The module path of each head, stack by stack and layer by layer."""
    kinds: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, module in attention_modules(model).items():
        kinds[kind_of(path)].append((path, module.n_heads))
    return {
        HeadName(kind, layer, head): path
        for kind, layers in kinds.items()
        for layer, (path, n_heads) in enumerate(layers, start=1)
        for head in range(1, n_heads + 1)
    }


def parse_heads(text: str) -> list[HeadName]:
    """Parse a list such as cross.2.1,cross.2.2.

    Raises:
        ConfigError: not KIND.LAYER.HEAD.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"[^.]*\.\d+\.\d+", word) for word in words):
        raise ConfigError(f"--heads must be KIND.LAYER.HEAD,..., such as decoder.1.2,decoder.2.1, got {text}")
    return [HeadName(kind, int(layer), int(head)) for kind, layer, head in (word.split(".") for word in words)]


def table(ablation: Ablation) -> str:
    """The metrics as lines of text, the worst loss first."""
    share = "exact_match" if "exact_match" in ablation.baseline else "token_accuracy"

    def cells(heads: str, pattern: str, metrics: dict[str, float]) -> list[str]:
        return [heads, pattern, f"{metrics['loss']:.4f}", f"{100 * metrics[share]:.2f} %"]

    rows = [["without", "pattern", "loss", share.replace("_", " ")], cells("nothing", "", ablation.baseline)]
    for part in (ablation.heads, ablation.groups):
        for ablated in sorted(part, key=lambda ablated: ablated.metrics["loss"], reverse=True):
            named = f"{ablated.named.pattern} {ablated.named.value:.2f}" if ablated.named else ""
            rows.append(cells(" ".join(map(str, ablated.heads)), named, ablated.metrics))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"metrics without some heads, on {ablation.examples:,} examples held out for {ablation.split}"]
    for heads, pattern, *metrics in rows:
        right = (cell.rjust(width) for cell, width in zip(metrics, widths[2:], strict=True))
        lines.append("  ".join(["", heads.ljust(widths[0]), pattern.ljust(widths[1]), *right]))
    return "\n".join(lines)
