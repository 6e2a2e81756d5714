"""What each head is worth: how much worse a model gets when a head is silenced (Michel et al. 2019, Voita et al. 2019).

A head is silenced by taking zeros for its output, in every row, also while the model writes. That says what the model
loses all of a sudden; trained without the head, it might have got along.
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

EXAMPLES = 500
"""How many examples tell what a head is worth."""


class HeadName(NamedTuple):
    """One head, layers and heads counted from 1; written as cross.2.1."""

    kind: str  # encoder, decoder or cross
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.{self.head}"


@dataclass(frozen=True)
class AblatedHeads:
    """What became of the model without some heads."""

    heads: tuple[HeadName, ...]
    named: Named | None  # what they do, where they all do the same; its value is the least of theirs
    figures: dict[str, float]  # of evaluation.Scores: loss, token_accuracy, and exact_match where there are answers


@dataclass(frozen=True)
class Ablation:
    """What became of a model without each of its heads."""

    split: Split
    examples: int
    whole: dict[str, float]  # figures with all heads
    heads: list[AblatedHeads]  # every head by itself, in the order of the model
    groups: list[AblatedHeads]  # heads of one kind that bear the same name, together; and those that were asked for

    def lost(self, silenced: AblatedHeads, figure: str) -> float:
        """How much worse a figure is without these heads, above zero for damage."""
        whole, left = self.whole[figure], silenced.figures[figure]
        return left - whole if figure == "loss" else whole - left

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""

        def plain(silenced: AblatedHeads) -> dict[str, Any]:
            named = silenced.named
            told = {"heads": [*map(str, silenced.heads)], "pattern": named and named.pattern}
            return {**told, "value": named and named.value, **silenced.figures}

        return {
            "split": self.split,
            "examples": self.examples,
            "whole": self.whole,
            "heads": [plain(silenced) for silenced in self.heads],
            "groups": [plain(silenced) for silenced in self.groups],
        }


def ablate(
    predictor: Predictor,
    split: Split | None = None,
    examples: int = EXAMPLES,
    together: Sequence[HeadName] = (),
) -> Ablation:
    """Silence each head in turn, then all of a kind that bear the same name, and evaluate what is left.

    Args:
        predictor: whose heads to silence.
        split: where the examples are from; by default where a finished run is measured.
        examples: how many, at most; they also tell what the heads do.
        together: heads to silence at the same time, besides.

    Raises:
        ConfigError: fewer than one example; a head that this model does not have.
    """
    if examples < 1:
        raise ConfigError(f"--examples must be at least 1, got {examples}")
    there = all_heads(predictor.model)
    for head in together:
        if head not in there:
            raise ConfigError(f"--heads: there is no head {head} in this model, {_shape(there)}")
    split = split or predictor.task.final_split
    held_out = predictor.task.examples(split, examples)
    names = {
        HeadName(kind, layer, head): named
        for kind, statistics in task_statistics(predictor, held_out).items()
        for layer, row in enumerate(strongest(statistics), start=1)
        for head, named in enumerate(row, start=1)
        if named is not None
    }
    alike: dict[tuple[str, str], list[HeadName]] = {}
    for head, named in names.items():
        alike.setdefault((head.kind, named.pattern), []).append(head)
    sets = [(head,) for head in there] + [tuple(heads) for heads in alike.values() if len(heads) > 1]
    sets += [tuple(together)] if together else []
    whole, *silenced = progress(
        (_without(predictor, heads, held_out) for heads in [(), *sets]),
        "ablating heads",
        total=1 + len(sets),
    )
    rows = [
        AblatedHeads(heads, _common([names.get(head) for head in heads]), figures)
        for heads, figures in zip(sets, silenced, strict=True)
    ]
    count = len(held_out)
    return Ablation(split, count, whole, rows[: len(there)], rows[len(there) :])


def all_heads(model: Transformer) -> list[HeadName]:
    """Every head of a model, stack by stack and layer by layer."""
    return [head for _, heads in _by_module(model) for head in heads]


def parse_heads(text: str) -> list[HeadName]:
    """Heads from cross.2.1,cross.2.2.

    Raises:
        ConfigError: written otherwise.
    """
    heads = []
    for word in text.split(","):
        kind, *numbers = word.strip().split(".")
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            raise ConfigError(f"--heads must be KIND.LAYER.HEAD,..., such as decoder.1.2,decoder.2.1, got {text}")
        heads.append(HeadName(kind, int(numbers[0]), int(numbers[1])))
    return heads


def _by_module(model: Transformer) -> Iterable[tuple[str, list[HeadName]]]:
    """The path of each attention, kind by kind, with its heads."""
    layers: dict[str, list[tuple[str, int]]] = {}
    for path, part in attention_modules(model).items():
        layers.setdefault(kind_of(path), []).append((path, part.n_heads))
    for kind, parts in layers.items():
        for layer, (path, heads) in enumerate(parts, start=1):
            yield path, [HeadName(kind, layer, head) for head in range(1, heads + 1)]


def _without(predictor: Predictor, silenced: Sequence[HeadName], examples: Examples) -> dict[str, float]:
    """The figures of a model without some heads."""
    masks = {path: [float(head not in silenced) for head in heads] for path, heads in _by_module(predictor.model)}
    masks = {path: mask for path, mask in masks.items() if not all(mask)}
    free = not predictor.task.metrics  # answers that are judged as texts hardly ever match
    special = predictor.tokenizer.special
    with head_mask(predictor.model, masks):
        figures = evaluate(predictor.model, examples, predictor.architecture, special, free).means()
    return {name: figures[name] for name in ("loss", "token_accuracy", "exact_match") if name in figures}


def _common(names: Sequence[Named | None]) -> Named | None:
    """The name that all bear, with the least of their values."""
    if None in names or len({named.pattern for named in names if named}) != 1:
        return None
    return min((named for named in names if named), key=lambda named: named.value)


def _shape(heads: Sequence[HeadName]) -> str:
    """The heads of a model in words: "which has encoder.1.1 to encoder.2.2, ..."."""
    ends = {head.kind: head for head in heads}
    return "which has " + ", ".join(f"{kind}.1.1 to {last}" for kind, last in ends.items())


def table(ablation: Ablation) -> str:
    """The damage as lines of text, the worst first."""
    figures = [figure for figure in ("exact_match", "token_accuracy") if figure in ablation.whole][:1]
    header = ["without", "which does", "loss", *(figure.replace("_", " ") for figure in figures)]
    rows = [["nothing", "", _loss(ablation.whole["loss"]), *(_share(ablation.whole[figure]) for figure in figures)]]
    for part in (ablation.heads, ablation.groups):
        for silenced in sorted(part, key=lambda silenced: ablation.lost(silenced, "loss"), reverse=True):
            named = f"{silenced.named.pattern} {silenced.named.value:.2f}" if silenced.named else ""
            shares = [_share(silenced.figures[figure]) for figure in figures]
            rows.append([" ".join(map(str, silenced.heads)), named, _loss(silenced.figures["loss"]), *shares])
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in [header, *rows])
    ]
    about = f"{ablation.examples:,} examples held out for {ablation.split}, what is left without some heads"
    return "\n".join([about, *(f"  {line}".rstrip() for line in lines)])


def _loss(value: float) -> str:
    return f"{value:.4f}"


def _share(value: float) -> str:
    return f"{100 * value:.2f} %"
