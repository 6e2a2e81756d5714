"""The importance of each part: how much worse a model gets without it (Michel et al. 2019, Voita et al. 2019).

A part is a head, a feed-forward network or one of its neurons. Its output is replaced in every row, in generation too:
by zeros, by its mean over the examples, or by that of another example (resampling, Chan et al. 2022). This measures the
loss of a part from a model that was trained with it; a model trained without it might have reached the same metrics.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.examples import Examples
from minitx.data.loader import FixedBatches
from minitx.data.splits import Split
from minitx.data.text.work_progress import progress
from minitx.evaluation.metrics import evaluate, rows_at_once
from minitx.inference.predictor import Predictor
from minitx.interpret.intervene import at, intervene, mean_activations
from minitx.interpret.recording import KINDS
from minitx.interpret.sites import sites
from minitx.interpret.task_statistics import task_statistics
from minitx.models.transformers import Transformer
from minitx.tensorboard.map_format import Named, strongest

By = Literal["zero", "mean", "resample"]
"""What replaces the output of a part."""


class Part(NamedTuple):
    """A head such as cross.2.1, a feed-forward network such as decoder.1.ffn, or one of its neurons: decoder.1.ffn.37.

    Layers, heads and neurons are counted from 1.
    """

    kind: str  # encoder, decoder or cross
    layer: int
    number: int  # of the head or the neuron; 0 for a whole network
    ffn: bool = False

    def __str__(self) -> str:
        words = [self.kind, self.layer, *(["ffn"] if self.ffn else []), *([self.number] if self.number else [])]
        return ".".join(map(str, words))

    @property
    def site(self) -> str:
        """The name of the activation that the part is in."""
        stack, attention = ("decoder", "cross_attn") if self.kind == "cross" else (self.kind, "self_attn")
        name = ("ffn.hidden" if self.number else "ffn.out") if self.ffn else f"{attention}.z"
        return f"{stack}.layers.{self.layer - 1}.{name}"


@dataclass(frozen=True)
class Ablated:
    """The metrics of the model without some parts."""

    parts: tuple[Part, ...]
    named: Named | None  # the pattern that all of them follow, heads all, with their lowest value
    metrics: dict[str, float]  # loss, token_accuracy, and exact_match where there are answers

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

    def damage(self, ablated: Ablated, metric: str) -> float:
        """How much worse a metric is without these parts, positive for damage."""
        change = ablated.metrics[metric] - self.baseline[metric]
        return change if metric == "loss" else -change

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        rows = {name: [row.to_dict() for row in getattr(self, name)] for name in ("parts", "groups")}
        return {"split": self.split, "by": self.by, "examples": self.examples, "whole": self.baseline, **rows}


def ablate(
    predictor: Predictor,
    split: Split | None = None,
    examples: int = 500,
    together: Sequence[Part] = (),
    parts: str = "heads",
    by: By = "zero",
) -> Ablation:
    """Evaluate the model without each part in turn, then without all heads of a kind that follow the same pattern.

    Args:
        split: of the examples; the task's final split by default.
        examples: at most this many, for the metrics, the statistics of the heads and the means.
        together: a further group of parts to ablate at the same time.
        parts: which parts in turn: "heads", "ffn" for feed-forward networks, or names, separated by commas.
        by: what replaces a part's output: zeros, its mean over all tokens, or the output in another example of the
            same batch, at the same index.

    Raises:
        ConfigError: too few examples; a part that this model does not have.
    """
    if by not in get_args(By):
        raise ConfigError(f"--by must be {', '.join(get_args(By))}, got {by}")
    least = 2 if by == "resample" else 1
    if examples < least:
        raise ConfigError(f"--examples must be at least {least}, got {examples}")
    model = predictor.model
    existing = all_parts(model)
    words = [word.strip() for word in parts.split(",")]
    listed = [part for word in words for part in existing.get(word) or parse_parts(word, "--parts")]
    _check(model, listed, "--parts")
    _check(model, together, "--together")
    split = split or predictor.task.final_split
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
    groups += [tuple(together)] if together else []
    means = _means(predictor, [*listed, *together], held_out) if by == "mean" else {}
    evaluations = (_evaluate_without(predictor, ablated, held_out, by, means) for ablated in [(), *groups])
    baseline, *metrics = progress(evaluations, "ablating", total=1 + len(groups))
    rows = [
        Ablated(ablated, _common([names.get(part) for part in ablated]), found)
        for ablated, found in zip(groups, metrics, strict=True)
    ]
    return Ablation(split, by, len(held_out), baseline, rows[: len(listed)], rows[len(listed) :])


def _common(names: Sequence[Named | None]) -> Named | None:
    """The pattern of all heads, with their lowest value; None where they differ."""
    found = [named for named in names if named]
    alike = len(found) == len(names) and len({named.pattern for named in found}) == 1
    return min(found, key=lambda named: named.value) if alike else None


def _evaluate_without(
    predictor: Predictor, ablated: Sequence[Part], examples: Examples, by: By, means: dict[str, Tensor]
) -> dict[str, float]:
    indices: dict[str, list[int]] = defaultdict(list)
    for part in ablated:
        indices[part.site].append(part.number - 1)
    generator = torch.Generator().manual_seed(0)

    def resampled(value: Tensor) -> Tensor:
        """The rows of a batch, moved by the same random number."""
        return value.roll(int(torch.randint(1, max(2, len(value)), (), generator=generator)), 0)

    value: Any = resampled if by == "resample" else by
    changes = {
        site: at(value, heads=chosen) if site.endswith(".z") else at(value, neurons=chosen)
        for site, chosen in indices.items()
        if not site.endswith(".out")
    }
    changes |= {site: at(value) for site in indices.keys() - changes.keys()}
    free_running = not predictor.task.metrics  # exact match means nothing for tasks with text metrics
    special = predictor.tokenizer.special
    with intervene(predictor.model, changes, means):
        scores = evaluate(predictor.model, examples, predictor.architecture, special, free_running).means()
    return {name: scores[name] for name in ("loss", "token_accuracy", "exact_match") if name in scores}


def _means(predictor: Predictor, parts: Sequence[Part], examples: Examples) -> dict[str, Tensor]:
    """The mean outputs of these parts over all tokens of the examples."""
    special, model = predictor.tokenizer.special, predictor.model
    slices = FixedBatches(examples, rows_at_once(model, examples.width))
    batches = (part.to(predictor.device).frame(predictor.architecture, special) for part in slices)
    return mean_activations(model, batches, special.pad, {part.site for part in parts})


def all_parts(model: Transformer) -> dict[str, list[Part]]:
    """The "heads" and the feed-forward networks, "ffn", of a model, stack by stack and layer by layer."""
    known, parts = sites(model), dict[str, list[Part]](heads=[], ffn=[])
    for kind in KINDS:
        for layer in itertools.count(1):
            if (first := known.get(Part(kind, layer, 1).site)) is None:
                break
            parts["heads"] += [Part(kind, layer, head) for head in range(1, first.size + 1)]
            ffn = Part(kind, layer, 0, ffn=True)
            parts["ffn"] += [ffn] if kind != "cross" and ffn.site in known else []
    return parts


def _check(model: Transformer, parts: Sequence[Part], key: str) -> None:
    """Raise a ConfigError for a part that the model does not have."""
    known, existing = sites(model), all_parts(model)
    for part in parts:
        whole = part._replace(number=0) if part.ffn else part
        if whole in existing["ffn" if part.ffn else "heads"] and part.number <= known[part.site].size:
            continue
        last = {head.kind: head for head in existing["heads"]}.values()
        shape = ", ".join(f"{head.kind}.1.1 to {head}" for head in last)
        networks = ", ".join(f"{ffn}.1 to {ffn}.{known[ffn._replace(number=1).site].size}" for ffn in existing["ffn"])
        raise ConfigError(f"{key}: there is no {part} in this model, which has {networks if part.ffn else shape}")


def parse_parts(text: str, key: str = "--together") -> list[Part]:
    """Parse a list such as cross.2.1,decoder.1.ffn,decoder.1.ffn.37.

    Raises:
        ConfigError: not KIND.LAYER.HEAD, KIND.LAYER.ffn or KIND.LAYER.ffn.NEURON.
    """
    parts = []
    for word in text.split(","):
        if not (found := re.fullmatch(r"([a-z]+)\.(\d+)\.(?:(\d+)|(ffn)(?:\.([1-9]\d*))?)", word.strip())):
            raise ConfigError(
                f"{key} must be KIND.LAYER.HEAD, KIND.LAYER.ffn or KIND.LAYER.ffn.NEURON, such as decoder.1.2, "
                f"decoder.1.ffn or decoder.1.ffn.37, got {text}"
            )
        kind, layer, head, ffn, neuron = found.groups()
        parts.append(Part(kind, int(layer), int(head or neuron or 0), bool(ffn)))
    return parts


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
    lines = [
        f"metrics without some parts ({ablation.by} ablation), on {ablation.examples:,} examples held out for "
        f"{ablation.split}"
    ]
    for parts, pattern, *metrics in rows:
        right = (cell.rjust(width) for cell, width in zip(metrics, widths[2:], strict=True))
        lines.append("  ".join(["", parts.ljust(widths[0]), pattern.ljust(widths[1]), *right]))
    return "\n".join(lines)
