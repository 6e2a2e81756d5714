"""What each head does, in numbers: from its attention weights to one value a head.

Legend: H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minitx.tensorboard.format import Statistic


class Map(NamedTuple):
    """The heads of one layer for one example, without padding."""

    weights: Tensor  # [H, T, S], float
    queries: Sequence[str]  # T labels
    keys: Sequence[str]  # S labels
    kind: str  # encoder, decoder or cross


class Measure(NamedTuple):
    """One way to put a number to a head."""

    meaning: str
    pattern: bool  # whether a value near 1 names what a head does
    of: Callable[[Map], Tensor | None]  # [H]; None where it says nothing of this kind or example


def entropy(layer: Map) -> Tensor:
    """Mean over queries of the entropy of their weights, as a share of its maximum, the logarithm of S: [H]."""
    bits = torch.special.entr(layer.weights).sum(dim=-1)  # [H, T]
    return bits.mean(dim=-1) / torch.tensor(float(max(len(layer.keys), 2))).log()


MEASURES: dict[str, Measure] = {
    "entropy": Measure("how widely a head looks: 0 at one key, 1 at all keys alike", False, entropy),
}
"""By name."""


def head_statistics(layers: Sequence[Map]) -> list[Statistic]:
    """Every measure of every head of a stack, from its first layer to its last."""
    found = []
    for name, measure in MEASURES.items():
        values = [measure.of(layer) for layer in layers]
        rows: list[list[float | None]] = [
            [None] * len(layer.weights) if value is None else [round(number, 4) for number in value.tolist()]
            for layer, value in zip(layers, values, strict=True)
        ]
        if any(value is not None for value in values):
            found.append(Statistic(name, measure.meaning, measure.pattern, rows))
    return found
