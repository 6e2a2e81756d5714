"""What each head does, in numbers: from its attention weights to one value a head.

A value is the mean over the rows that count. A row that may see one key only has no choice and never counts. Where a
question and its answer are one sequence (decoder_only: question, `<sep>`, answer), only the rows that write the answer
count for what concerns copying: nothing is asked of the others.

Legend: L layers, H heads, T queries, S keys, R rows that count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minitx.data.tokenizers import SEPARATOR
from minitx.interpret.recording import Map
from minitx.tensorboard.map_format import Statistic


class Measure(NamedTuple):
    """One way to put a number to a head."""

    meaning: str
    pattern: bool  # whether a value near 1 names what a head does
    of: Callable[[Map], Tensor | None]  # [H, R], the rows that count; None where there is none


def entropy(layer: Map) -> Tensor | None:
    """Entropy of a row's weights, as a share of the most that it can be: the logarithm of the keys that it may see.

    -sum_s w_s ln w_s / ln n: 0 at one key, 1 at all of them alike (Vig and Belinkov 2019; Clark et al. 2019). A window
    or the border of packed documents is not known here, and so taken for the head's own narrowness.
    """
    seen = _seen(layer)
    counted = seen > 1
    if not counted.any():
        return None
    return torch.special.entr(layer.weights).sum(dim=-1)[:, counted] / seen[counted].log()


def mean_distance(layer: Map) -> Tensor | None:
    """sum_s w_s |t - s|, in tokens (Vig and Belinkov 2019); for self-attention."""
    if layer.kind == "cross":
        return None
    place = torch.arange(len(layer.keys), dtype=torch.float)
    distance = (place[:, None] - place).abs()  # [T, S]
    return _chosen(torch.einsum("hts,ts->ht", layer.weights, distance), _seen(layer) > 1)


def diagonal(layer: Map) -> Tensor | None:
    """Weight on the query's own place.

    In cross-attention row t, which has read target t - 1 and writes target t, is at source t: copying. Of its rows,
    the last one, which writes the end, does not count, and neither do those past the source.
    """
    on = layer.weights.diagonal(dim1=1, dim2=2)  # [H, min(T, S)]
    counted = _seen(layer)[: on.size(1)] > 1
    if layer.kind == "cross":
        counted &= _writes(layer)[: on.size(1)]
    return _chosen(on, counted)


def antidiagonal(layer: Map) -> Tensor | None:
    """Weight on the place as far from the end as the query is from the beginning: reversal.

    S - 1 - t in an encoder; the same in cross-attention, with the rows of `diagonal`. In a decoder it needs a question
    and an answer: the row that writes the answer's i-th token, from i = 0 at `<sep>`, against the question's i-th from
    its end.
    """
    weights, counted = layer.weights, _seen(layer) > 1
    if layer.kind == "decoder":
        begin = _separator(layer)
        if begin is None:
            return None
        weights = weights[:, begin:-1, :begin]  # the last row writes the end
        counted = counted[begin:-1]
    elif layer.kind == "cross":
        counted &= _writes(layer)
    on = weights.flip(2).diagonal(dim1=1, dim2=2)
    return _chosen(on, counted[: on.size(1)])


def previous_token(layer: Map) -> Tensor | None:
    """Weight on the token before (Voita et al. 2019, positional heads; Clark et al. 2019); for self-attention."""
    if layer.kind == "cross":
        return None
    return _chosen(layer.weights.diagonal(-1, 1, 2), _seen(layer)[1:] > 1)


def next_token(layer: Map) -> Tensor | None:
    """Weight on the token after (Voita et al. 2019), for self-attention in both directions: a causal row sees none."""
    if layer.kind != "encoder":
        return None
    return _chosen(layer.weights.diagonal(1, 1, 2), _seen(layer)[:-1] > 1)


def first_token(layer: Map) -> Tensor | None:
    """Weight on the first token: where heads rest that have nothing to do (Vig and Belinkov 2019; Xiao et al. 2024)."""
    return _chosen(layer.weights[:, :, :1].sum(dim=-1), _seen(layer) > 1)


def induction(layer: Map) -> Tensor | None:
    """Weight on the tokens that came next after earlier occurrences of the query's own (Olsson et al. 2022).

    Counted are rows whose token has stood before; the query itself is no such key, so that a token that repeats at
    once does not make one of a head that looks at itself. Behind a `<sep>`, only rows that write the answer count, not
    the one that writes its end. For self-attention.
    """
    if layer.kind == "cross":
        return None
    numbers = {label: number for number, label in enumerate(dict.fromkeys(layer.keys))}
    tokens = torch.tensor([numbers[label] for label in layer.keys])
    after = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)  # [T, S]
    after[:, 1:] = (tokens[:, None] == tokens[:-1]).tril(-2)  # key s follows an occurrence at s - 1, and is before t
    counted = after.any(dim=1)
    begin = _separator(layer)
    if begin is not None:
        counted[:begin] = False
        counted[-1] = False
    if not counted.any():
        return None
    return (layer.weights[:, counted] * after[counted]).sum(dim=-1)


def _seen(layer: Map) -> Tensor:
    """How many keys each query may see, float [T].

    A decoder's rows see themselves and what stands before; more where there is weight on it, as in the question that
    a prefix LM reads in both directions.
    """
    queries, keys = len(layer.queries), len(layer.keys)
    if layer.kind != "decoder":
        return torch.full((queries,), float(keys))
    own = torch.arange(1.0, queries + 1)
    later = layer.weights.amax(dim=0).triu(1)  # [T, S]
    return own + (later > 0).sum(dim=1) if later.any() else own


def _writes(layer: Map) -> Tensor:
    """Of cross-attention's rows, those that write a token of the answer and not its end, bool [T]."""
    return torch.arange(len(layer.queries)) < len(layer.queries) - 1


def _separator(layer: Map) -> int | None:
    """Where the question ends, in a decoder that has read both it and the answer."""
    return layer.queries.index(SEPARATOR) if layer.kind == "decoder" and SEPARATOR in layer.queries else None


def _chosen(values: Tensor, counted: Tensor) -> Tensor | None:
    """The rows of values [H, T] that count."""
    return values[:, counted] if counted.any() else None


MEASURES: dict[str, Measure] = {
    "entropy": Measure(
        "how widely it looks: entropy over its maximum, 0 at one key, 1 at all alike (Vig and Belinkov 2019)",
        False,
        entropy,
    ),
    "mean_distance": Measure("how far it looks, in tokens (Vig and Belinkov 2019)", False, mean_distance),
    "diagonal": Measure("weight on its own place; in cross-attention, on the place it writes", True, diagonal),
    "antidiagonal": Measure("weight on the place it writes, counted from the source's end", True, antidiagonal),
    "previous_token": Measure("weight on the token before (Voita et al. 2019)", True, previous_token),
    "next_token": Measure("weight on the token after, in an encoder (Voita et al. 2019)", True, next_token),
    "first_token": Measure("weight on the first token (Vig and Belinkov 2019)", True, first_token),
    "induction": Measure(
        "weight on what came next where the present token stood before (Olsson et al. 2022)", True, induction
    ),
}
"""By name."""


def head_statistics(layers: Sequence[Map]) -> list[Statistic]:
    """Every measure of every head of a stack for one example, from its first layer to its last."""
    sums = HeadSums()
    sums.add(layers)
    return sums.statistics()


class HeadSums:
    """Adds up what the heads of a stack do over examples."""

    def __init__(self) -> None:
        self._heads: list[int] = []
        self._sums: dict[str, tuple[Tensor, int]] = {}  # over rows that count [L * H], and how many there were

    def add(self, layers: Sequence[Map]) -> None:
        """One more example: its maps of one kind, from the first layer to the last."""
        if not layers:
            return
        self._heads = [len(layer.weights) for layer in layers]
        whole = layers[0]._replace(weights=torch.cat([layer.weights for layer in layers]))
        for name, measure in MEASURES.items():
            values = measure.of(whole)
            if values is not None:
                total, rows = self._sums.get(name, (0.0, 0))
                self._sums[name] = (total + values.double().sum(dim=1), rows + values.size(1))

    def statistics(self) -> list[Statistic]:
        """The means over the rows of all examples that count, without the measures for which none does."""
        found = []
        for name, measure in MEASURES.items():
            if name in self._sums:
                total, rows = self._sums[name]
                means = (total / rows).split(self._heads)
                values: list[list[float | None]] = [
                    [None if math.isnan(value) else round(value, 4) for value in layer.tolist()] for layer in means
                ]
                found.append(Statistic(name, measure.meaning, measure.pattern, values))
        return found
