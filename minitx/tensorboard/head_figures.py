"""Head statistics during training: scalars, a table and JSON over all logged examples together. No torch here."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, TypedDict

from tensorboard.compat.proto.summary_pb2 import Summary

from minitx.tensorboard.map_format import Statistic, strongest
from minitx.tensorboard.writer import add_values, markdown_table

MAX_HEAD_CURVES = 64
"""Heads of one kind with a curve each; with more heads, only the highest value or the mean has a curve."""


class HeadFigures(TypedDict):
    """One head, over the logged examples; an entry of heads.json in a run's folder."""

    kind: str  # encoder, decoder or cross
    layer: int  # from 1
    head: int  # from 1
    figures: dict[str, float]  # by statistic, without undefined ones
    pattern: str | None  # that the head follows


def heads(statistics: Mapping[str, Sequence[Statistic]]) -> list[HeadFigures]:
    """Rearrange the statistics of each kind of attention by head."""
    return [
        {
            "kind": kind, "layer": layer + 1, "head": head + 1,
            "figures": {part.name: value for part in parts if (value := part.values[layer][head]) is not None},
            "pattern": named.pattern if named else None,
        }
        for kind, parts in statistics.items()
        for layer, row in enumerate(strongest(parts))
        for head, named in enumerate(row)
    ]  # fmt: skip


def add_heads(writer: Any, statistics: Mapping[str, Sequence[Statistic]], step: int) -> None:
    """Write head statistics as scalars, all in one event.

    Every head has a curve, validation_heads_cross/antidiagonal/layer_1.head_2, up to MAX_HEAD_CURVES of its kind; with
    more heads, each pattern has one of its highest value, each other statistic one of its mean. The name follows those
    of the training and validation curves in alphabetical order, which is that of TensorBoard.
    """
    scalars: dict[str, float] = {}
    for kind, parts in statistics.items():
        for part in parts:
            tag = f"validation_heads_{kind}/{part.name}"
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
    names = list(dict.fromkeys(name for head in found for name in head["figures"]))
    rows = []
    for head in found:
        values = [f"{head['figures'][name]:.2f}" if name in head["figures"] else "" for name in names]
        rows.append([f"{head['kind']} {head['layer']}.{head['head']}", head["pattern"] or "", *values])
    return markdown_table(["layer.head", "pattern", *names], rows)
