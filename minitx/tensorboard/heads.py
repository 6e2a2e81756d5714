"""What each head does while training goes on: the figures of all logged examples together. No torch here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from tensorboard.compat.proto.summary_pb2 import Summary

from minitx.tensorboard.writer import markdown_table

SHOWN_ONE_BY_ONE = 64
"""Heads of one kind that have curves of their own; of more, the strongest has."""


class Head(NamedTuple):
    """One head, over the examples that were looked at."""

    kind: str  # encoder, decoder or cross
    layer: int  # from 1
    head: int  # from 1
    figures: dict[str, float]  # by statistic; left out where it says nothing
    patterns: dict[str, float]  # those of them that name what a head does

    @property
    def strongest(self) -> str | None:
        """The pattern that this head is closest to."""
        return max(self.patterns, key=self.patterns.__getitem__, default=None)


def heads(headers: Sequence[Mapping[str, Any]]) -> list[Head]:
    """Means over the headers of one model at one step (format.read_header), of whatever kinds and examples."""
    seen: dict[tuple[str, int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    patterns = set()
    for header in headers:
        for layer, count in enumerate(header["heads"]):
            for head in range(count):
                figures = seen[header["kind"], layer + 1, head + 1]
                for statistic in header["statistics"]:
                    patterns |= {statistic["name"]} if statistic["pattern"] else set()
                    value = statistic["values"][layer][head]
                    figures[statistic["name"]] += [] if value is None else [value]
    found = []
    for place, lists in seen.items():
        means = {name: fmean(values) for name, values in lists.items() if values}
        found.append(Head(*place, means, {name: value for name, value in means.items() if name in patterns}))
    return found


def add_heads(writer: Any, found: Sequence[Head], step: int) -> None:
    """Write figures of heads as scalars, all in one event.

    Every head has a curve, heads_cross/antidiagonal/layer_1.head_2, if there are at most SHOWN_ONE_BY_ONE of its kind.
    Of more, there is the highest of each pattern and the mean of each other statistic.

    Args:
        writer: a torch.utils.tensorboard.SummaryWriter.
        found: of heads.
        step: of training.
    """
    scalars: dict[str, float] = {}
    for kind in dict.fromkeys(head.kind for head in found):
        of_kind = [head for head in found if head.kind == kind]
        for name in dict.fromkeys(name for head in of_kind for name in head.figures):
            told = [head for head in of_kind if name in head.figures]
            values = [head.figures[name] for head in told]
            tag = f"heads_{kind}/{name}"
            if len(of_kind) <= SHOWN_ONE_BY_ONE:
                scalars |= {f"{tag}/layer_{head.layer}.head_{head.head}": head.figures[name] for head in told}
            elif any(name in head.patterns for head in told):
                scalars[f"{tag}/highest"] = max(values)
            else:
                scalars[f"{tag}/mean"] = fmean(values)
    if scalars:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        writer._get_file_writer().add_summary(Summary(value=values), step)


def heads_table(found: Sequence[Head]) -> str:
    """Every head with its strongest pattern and all its figures, in Markdown for TensorBoard's text tab."""
    names = list(dict.fromkeys(name for head in found for name in head.figures))
    rows = [
        [
            f"{head.kind} {head.layer}.{head.head}",
            head.strongest or "",
            *(_said(head.figures.get(name)) for name in names),
        ]
        for head in found
    ]
    return markdown_table(["layer.head", "strongest pattern", *names], rows)


def heads_json(found: Sequence[Head]) -> list[dict[str, Any]]:
    """The same as plain JSON types, for heads.json in a run's folder."""
    return [
        {
            "kind": head.kind,
            "layer": head.layer,
            "head": head.head,
            "strongest": head.strongest,
            "figures": {name: round(value, 4) for name, value in head.figures.items()},
        }
        for head in found
    ]


def _said(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
