"""Statistics of each head, computed from its attention weights.

A statistic is the mean over the counted rows. A row with a single visible key is never counted. Where prompt and answer
are one sequence (decoder_only: prompt, `<sep>`, answer), copying is measured only on the rows that predict the answer.

Legend: L layers, H heads, T queries, S keys, R counted rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minitx.data.tokenizers import SEPARATOR
from minitx.interpret.recording import Map
from minitx.tensorboard.map_format import Statistic

SELF = ("encoder", "decoder")
"""The kinds of self-attention."""


class Measure(NamedTuple):
    """A statistic of a head, and the kinds of attention that it applies to."""

    of: Callable[[Map], Tensor]  # [H, R], one value for each counted row; R may be 0
    meaning: str
    pattern: bool  # whether a value near 1 names the pattern of a head
    kinds: tuple[str, ...]


MEASURES: dict[str, Measure] = {}
"""All measures, by name of the statistic."""


def _measure(meaning: str, pattern: bool, kinds: tuple[str, ...] = (*SELF, "cross")) -> Any:
    def register(of: Callable[[Map], Tensor]) -> Callable[[Map], Tensor]:
        MEASURES[of.__name__] = Measure(of, meaning, pattern, kinds)
        return of

    return register


@_measure("entropy over its maximum: 0 for one key, 1 for uniform weights (Vig and Belinkov 2019)", pattern=False)
def entropy(layer: Map) -> Tensor:
    """-sum_s w_s ln w_s / ln n for n visible keys (Vig and Belinkov 2019; Clark et al. 2019).

    Keys hidden by a window or by the boundaries of packed documents are counted as visible.
    """
    visible = _visible(layer)
    counted = visible > 1
    return torch.special.entr(layer.weights).sum(dim=-1)[:, counted] / visible[counted].log()


@_measure("mean distance in tokens (Vig and Belinkov 2019)", pattern=False, kinds=SELF)
def mean_distance(layer: Map) -> Tensor:
    """sum_s w_s |t - s|, in tokens (Vig and Belinkov 2019)."""
    positions = torch.arange(len(layer.keys), dtype=torch.float)
    distance = (positions[:, None] - positions).abs()  # [T, S]
    return torch.einsum("hts,ts->ht", layer.weights, distance)[:, _visible(layer) > 1]


@_measure("weight on its own position; in cross-attention, on the predicted one", pattern=True)
def diagonal(layer: Map) -> Tensor:
    """Weight on the query's own position; in cross-attention, of the row that predicts target t on source t: copying.

    In cross-attention, the last row, which predicts the end, and rows past the source are not counted, and `<bos>` and
    `<eos>` around the question are not part of the source.
    """
    weights = layer.weights[:, :, _question(layer.keys)] if layer.kind == "cross" else layer.weights
    weights = weights.diagonal(dim1=1, dim2=2)  # [H, min(T, S)]
    return weights[:, _predicts_token(layer)[: weights.size(1)]]


@_measure("weight on the predicted position, counted from the source's end", pattern=True)
def antidiagonal(layer: Map) -> Tensor:
    """Weight on the position as far from the end as the query is from the start: reversal.

    S - 1 - t in an encoder and in cross-attention, with the rows of `diagonal`. In a decoder with prompt and answer:
    of the row that predicts the answer's i-th token, from i = 0 at `<sep>`, on the prompt's i-th token from its end.
    """
    weights, counted = layer.weights, _predicts_token(layer)
    if layer.kind == "decoder":
        start = _separator(layer) or 0  # without a prompt, no key is left
        weights, counted = weights[:, start:-1, _question(layer.keys[:start])], counted[start:-1]  # not the end's row
    elif layer.kind == "cross":
        weights = weights[:, :, _question(layer.keys)]
    weights = weights.flip(2).diagonal(dim1=1, dim2=2)
    return weights[:, counted[: weights.size(1)]]


@_measure("weight on the token before (Voita et al. 2019)", pattern=True, kinds=SELF)
def previous_token(layer: Map) -> Tensor:
    """Weight on the token before (Voita et al. 2019, positional heads; Clark et al. 2019)."""
    return layer.weights.diagonal(-1, 1, 2)[:, _visible(layer)[1:] > 1]


@_measure("weight on the token after (Voita et al. 2019)", pattern=True, kinds=("encoder",))
def next_token(layer: Map) -> Tensor:
    """Weight on the token after (Voita et al. 2019)."""
    return layer.weights.diagonal(1, 1, 2)[:, _visible(layer)[:-1] > 1]


@_measure("weight on the first token (Vig and Belinkov 2019)", pattern=True)
def first_token(layer: Map) -> Tensor:
    """Weight on the first token, the attention sink of inactive heads (Vig and Belinkov 2019; Xiao et al. 2024)."""
    return layer.weights[:, :, :1].sum(dim=-1)[:, _visible(layer) > 1]


@_measure("weight on the tokens that followed earlier occurrences of its token (Olsson et al. 2022)", True, SELF)
def induction(layer: Map) -> Tensor:
    """Weight on the tokens that followed earlier occurrences of the query's token (Olsson et al. 2022).

    Only rows with such a key are counted. The query itself never is one: if a token is repeated at once, a head on the
    diagonal is not an induction head. With a `<sep>`, only rows that predict the answer are counted, without its end.
    """
    ids = {label: id_ for id_, label in enumerate(dict.fromkeys(layer.keys))}
    tokens = torch.tensor([ids[label] for label in layer.keys])
    after = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)  # [T, S]
    after[:, 1:] = (tokens[:, None] == tokens[:-1]).tril(-2)  # key s follows an occurrence at s - 1, and is before t
    counted = after.any(dim=1)
    start = _separator(layer)
    if start is not None:
        counted[:start] = False
        counted[-1] = False
    return (layer.weights[:, counted] * after[counted]).sum(dim=-1)


def _visible(layer: Map) -> Tensor:
    """Number of keys that each query may attend to, float [T]."""
    queries = len(layer.queries)
    if layer.kind != "decoder":
        return torch.full((queries,), float(len(layer.keys)))
    later = layer.weights.amax(dim=0).triu(1)  # [T, S], nonzero in the prompt of a prefix LM
    return torch.arange(1.0, queries + 1) + (later > 0).sum(dim=1)


def _predicts_token(layer: Map) -> Tensor:
    """Rows with a choice of keys, bool [T]; in cross-attention without the last one, which predicts the end."""
    counted = _visible(layer) > 1
    if layer.kind == "cross":
        counted[-1:] = False
    return counted


def _question(labels: Sequence[str]) -> slice:
    """The tokens of a question without the `<bos>` and `<eos>` around it (data.add_bos, data.add_eos)."""
    return slice(int("<bos>" in labels[:1]), len(labels) - ("<eos>" in labels[-1:]))


def _separator(layer: Map) -> int | None:
    """Position of `<sep>` in a decoder that reads prompt and answer."""
    return layer.queries.index(SEPARATOR) if layer.kind == "decoder" and SEPARATOR in layer.queries else None


class HeadSums:
    """Sums of the statistics of a stack's heads over examples."""

    def __init__(self) -> None:
        self._heads: list[int] = []  # number in each layer
        self._sums: dict[str, tuple[Tensor, int]] = {}  # over the counted rows [L * H], and the number of rows

    def add(self, layers: Sequence[Map]) -> list[Statistic]:
        """Add an example: its maps of one kind, from the first layer to the last. Return its own statistics."""
        if not layers:
            return []
        self._heads = [len(layer.weights) for layer in layers]
        stacked = layers[0]._replace(weights=torch.cat([layer.weights for layer in layers]))
        own = {}
        for name, measure in MEASURES.items():
            if stacked.kind in measure.kinds and (values := measure.of(stacked)).size(1):
                own[name] = values.double().sum(dim=1), values.size(1)
                total, rows = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + own[name][0], rows + own[name][1]
        return self._means(own)

    def statistics(self) -> list[Statistic]:
        """The means over the counted rows of all examples, without the statistics that have none."""
        return self._means(self._sums)

    def _means(self, sums: Mapping[str, tuple[Tensor, int]]) -> list[Statistic]:
        found = []
        for name in filter(sums.__contains__, MEASURES):
            means = (sums[name][0] / sums[name][1]).tolist()
            heads = iter([round(value, 4) if math.isfinite(value) else None for value in means])
            values = [list(islice(heads, count)) for count in self._heads]
            found.append(Statistic(name, MEASURES[name].meaning, MEASURES[name].pattern, values))
        return found


def head_statistics(layers: Sequence[Map]) -> list[Statistic]:
    """Every statistic of every head of a stack for one example, from the first layer to the last."""
    return HeadSums().add(layers)
