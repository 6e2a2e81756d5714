"""Head statistics during training: scalars, a table and JSON over all logged examples together. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from tensorboard.compat.proto.summary_pb2 import Summary

from minitx.tensorboard.map_format import Statistic, strongest
from minitx.tensorboard.writer import add_values, markdown_table

MAX_HEAD_CURVES = 64
"""Heads of one kind with a curve each; with more heads, only the highest value or the mean has a curve."""


class HeadFigures(NamedTuple):
    """One head, over the logged examples."""

    kind: str  # encoder, decoder or cross
    layer: int  # from 1
    head: int  # from 1
    figures: dict[str, float]  # by statistic, without undefined ones
    pattern: str | None  # that the head follows


def heads(statistics: Mapping[str, Sequence[Statistic]]) -> list[HeadFigures]:
    """Rearrange the statistics of each kind of attention by head."""
    found = []
    for kind, parts in statistics.items():
        for layer, row in enumerate(strongest(parts)):
            for head, named in enumerate(row):
                values = {part.name: part.values[layer][head] for part in parts}
                figures = {name: value for name, value in values.items() if value is not None}
                found.append(HeadFigures(kind, layer + 1, head + 1, figures, named.pattern if named else None))
    return found


def add_heads(writer: Any, statistics: Mapping[str, Sequence[Statistic]], step: int) -> None:
    """Write head statistics as scalars, all in one event.

    Every head has a curve, heads_cross/antidiagonal/layer_1.head_2, up to MAX_HEAD_CURVES of its kind; with more
    heads, each pattern has one of its highest value, each other statistic one of its mean.
    """
    scalars: dict[str, float] = {}
    for kind, parts in statistics.items():
        for part in parts:
            tag = f"heads_{kind}/{part.name}"
            curves = {
                f"{tag}/layer_{layer}.head_{head}": value
                for layer, values in enumerate(part.values, start=1)
                for head, value in enumerate(values, start=1)
                if value is not None
            }
            if sum(map(len, part.values)) <= MAX_HEAD_CURVES:
                scalars |= curves
            elif curves:
                name, summary = ("highest", max) if part.pattern else ("mean", fmean)
                scalars[f"{tag}/{name}"] = summary(curves.values())
    if scalars:
        add_values(writer, [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()], step)


def heads_table(found: Sequence[HeadFigures]) -> str:
    """Every head with its pattern and all its statistics, in Markdown for TensorBoard's text tab."""
    names = list(dict.fromkeys(name for head in found for name in head.figures))
    rows = []
    for kind, layer, number, figures, pattern in found:
        values = [f"{figures[name]:.2f}" if name in figures else "" for name in names]
        rows.append([f"{kind} {layer}.{number}", pattern or "", *values])
    return markdown_table(["layer.head", "pattern", *names], rows)


def heads_json(found: Sequence[HeadFigures]) -> list[dict[str, Any]]:
    """The same as plain JSON types, for heads.json in a run's folder."""
    return [
        {**head._asdict(), "figures": {name: round(value, 4) for name, value in head.figures.items()}} for head in found
    ]
