"""What each head does while training goes on: the figures of all logged examples together. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from tensorboard.compat.proto.summary_pb2 import Summary

from minitx.tensorboard.map_format import Statistic, strongest
from minitx.tensorboard.writer import markdown_table

SHOWN_ONE_BY_ONE = 64
"""Heads of one kind that have curves of their own; of more, the strongest has."""


class HeadFigures(NamedTuple):
    """One head, over the examples that were looked at."""

    kind: str  # encoder, decoder or cross
    layer: int  # from 1
    head: int  # from 1
    figures: dict[str, float]  # by statistic; left out where it says nothing
    named: str | None  # the pattern that it follows, if any


def heads(statistics: Mapping[str, Sequence[Statistic]]) -> list[HeadFigures]:
    """Head by head what the statistics of each kind of attention say."""
    found = []
    for kind, told in statistics.items():
        for layer, names in enumerate(strongest(told)):
            for head, named in enumerate(names):
                values = {part.name: part.values[layer][head] for part in told}
                figures = {name: value for name, value in values.items() if value is not None}
                found.append(HeadFigures(kind, layer + 1, head + 1, figures, named.pattern if named else None))
    return found


def add_heads(writer: Any, statistics: Mapping[str, Sequence[Statistic]], step: int) -> None:
    """Write figures of heads as scalars, all in one event.

    Every head has a curve, heads_cross/antidiagonal/layer_1.head_2, if there are at most SHOWN_ONE_BY_ONE of its kind.
    Of more, there is the highest of each pattern and the mean of each other statistic.

    Args:
        writer: a torch.utils.tensorboard.SummaryWriter.
        statistics: of each kind of attention.
        step: of training.
    """
    scalars: dict[str, float] = {}
    for kind, told in statistics.items():
        for part in told:
            tag = f"heads_{kind}/{part.name}"
            curves = {
                f"{tag}/layer_{layer}.head_{head}": value
                for layer, values in enumerate(part.values, start=1)
                for head, value in enumerate(values, start=1)
                if value is not None
            }
            if sum(map(len, part.values)) <= SHOWN_ONE_BY_ONE:
                scalars |= curves
            elif curves and part.pattern:
                scalars[f"{tag}/highest"] = max(curves.values())
            elif curves:
                scalars[f"{tag}/mean"] = fmean(curves.values())
    if scalars:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        writer._get_file_writer().add_summary(Summary(value=values), step)


def heads_table(found: Sequence[HeadFigures]) -> str:
    """Every head with the pattern that it follows and all its figures, in Markdown for TensorBoard's text tab."""
    names = list(dict.fromkeys(name for head in found for name in head.figures))
    rows = [
        [
            f"{head.kind} {head.layer}.{head.head}",
            head.named or "",
            *(_said(head.figures.get(name)) for name in names),
        ]
        for head in found
    ]
    return markdown_table(["layer.head", "pattern", *names], rows)


def heads_json(found: Sequence[HeadFigures]) -> list[dict[str, Any]]:
    """The same as plain JSON types, for heads.json in a run's folder."""
    return [
        {
            "kind": head.kind,
            "layer": head.layer,
            "head": head.head,
            "pattern": head.named,
            "figures": {name: round(value, 4) for name, value in head.figures.items()},
        }
        for head in found
    ]


def _said(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
