"""Head statistics: each pattern on maps made by hand, the definitions in plain Python, and invariances."""

import math
from statistics import fmean

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.interpret.head_statistics import MEASURES, head_statistics
from minitx.interpret.recording import KINDS, Map
from minitx.tensorboard.map_format import strongest

SIZE = 9
STRING = list("abcdabcda")  # each token from the fifth on repeats the one four positions earlier
PATTERNS = [name for name, measure in MEASURES.items() if measure.pattern]


def one_hot(places: list[int], keys: int) -> Tensor:
    """A head whose row t attends to places[t] alone: [1, T, S]."""
    return torch.nn.functional.one_hot(torch.tensor(places), keys).float()[None]


def values(layer: Map) -> dict[str, list[float]]:
    """Each measure of the heads of one layer."""
    return {statistic.name: statistic.values[0] for statistic in head_statistics([layer])}


def causal(heads: int, size: int) -> Tensor:
    """Random weights, none of them on the future."""
    scores = torch.randn(heads, size, size).masked_fill(torch.ones(size, size).triu(1).bool(), -torch.inf)
    return scores.softmax(dim=-1)


PURE = {  # kind, pattern: the key of row t
    ("encoder", "diagonal"): [*range(SIZE)],
    ("encoder", "antidiagonal"): [SIZE - 1 - row for row in range(SIZE)],
    ("encoder", "previous_token"): [0, *range(SIZE - 1)],
    ("encoder", "next_token"): [*range(1, SIZE), SIZE - 1],
    ("encoder", "first_token"): [0] * SIZE,
    ("encoder", "induction"): [3, 5, 7, 8, 1, 2, 3, 4, 5],
    ("decoder", "diagonal"): [*range(SIZE)],
    ("decoder", "previous_token"): [0, *range(SIZE - 1)],
    ("decoder", "first_token"): [0] * SIZE,
    ("decoder", "induction"): [0, 0, 1, 1, 1, 2, 3, 4, 5],
}


@pytest.mark.parametrize(("kind", "pattern"), PURE)
def test_a_pure_pattern_is_one_for_its_own_and_small_for_others(kind: str, pattern: str) -> None:
    layer = Map(one_hot(PURE[kind, pattern], SIZE), STRING, STRING, kind)
    found = values(layer)
    assert found[pattern] == [1.0]
    assert found["entropy"] == [0.0]
    for other in set(PATTERNS) & set(found) - {pattern}:
        assert found[other][0] <= 0.3, f"{pattern} is taken for {other}"
    assert strongest(head_statistics([layer])) == [[(pattern, 1.0)]]


def definitions(layer: Map) -> dict[str, float]:
    """Each measure of the first head, in plain Python: the mean of a number for each counted row.

    In cross-attention, row 0 reads <bos> and predicts the first token; the last row predicts the end: not counted.
    """
    rows, keys, kind = layer.weights[0].tolist(), len(layer.keys), layer.kind
    size = len(rows)
    later = (layer.weights > 0).any(0).triu(1).sum(1).tolist()  # in a bidirectional prefix
    visible = [keys if kind != "decoder" else row + 1 + later[row] for row in range(size)]
    counted = [row for row in range(size) if visible[row] > 1]
    aligned = [row for row in counted if row < keys and (kind != "cross" or row < size - 1)]
    prompt = layer.queries.index("<sep>") if kind == "decoder" and "<sep>" in layer.queries else None
    answering = range(size) if prompt is None else range(prompt, size - 1)
    end = 2 * (prompt or 0) if kind == "decoder" else keys  # where row and mirrored key add up to the one before
    mirrored = [row for row in (answering if kind == "decoder" else aligned) if row < end]
    numbers = {
        "entropy": [-sum(w * math.log(w) for w in rows[row] if w) / math.log(visible[row]) for row in counted],
        "diagonal": [rows[row][row] for row in aligned],
        "antidiagonal": [rows[row][end - 1 - row] for row in mirrored],
        "first_token": [rows[row][0] for row in counted],
    }
    if kind != "cross":

        def followers(row: int) -> list[int]:
            """Keys after earlier occurrences of the row's token, without the query itself."""
            return [key for key in range(1, row) if layer.keys[key - 1] == layer.queries[row]]

        numbers |= {
            "mean_distance": [sum(w * abs(key - row) for key, w in enumerate(rows[row])) for row in counted],
            "previous_token": [rows[row][row - 1] for row in counted if row],
            "induction": [sum(rows[row][key] for key in followers(row)) for row in answering if followers(row)],
        }
    if kind == "encoder":
        numbers["next_token"] = [rows[row][row + 1] for row in counted if row + 1 < size]
    return {name: fmean(values) for name, values in numbers.items() if values}


@settings(max_examples=300)
@given(st.integers(0, 10_000), st.sampled_from(sorted(KINDS)), st.text("abc|", max_size=9), st.text("ab", max_size=9))
@example(0, "decoder", "abcb|ca", "abcb")  # a bidirectional prompt
@example(0, "decoder", "abca", "")
def test_every_measure_is_its_definition(seed: int, kind: str, text: str, other: str) -> None:
    torch.manual_seed(seed)
    queries = [{"|": "<sep>"}.get(token, token) for token in text]
    keys = [*other] if kind == "cross" else queries
    scores = 3 * torch.randn(2, len(queries), len(keys))
    if kind == "decoder":
        hidden = torch.ones(len(queries), len(queries)).triu(1).bool()
        hidden[: len(other), : len(other)] = False
        scores = scores.masked_fill(hidden, -torch.inf)
    layer = Map(scores.softmax(dim=-1), queries, keys, kind)
    expected = definitions(layer)
    assert {name: row[0] for name, row in values(layer).items()} == pytest.approx(expected, abs=1e-4)
    assert head_statistics([]) == []


@given(st.integers(0, 10_000), st.permutations(range(4)), st.sampled_from(["encoder", "decoder"]))
def test_permuting_heads_permutes_values(seed: int, order: list[int], kind: str) -> None:
    torch.manual_seed(seed)
    weights = causal(4, SIZE)
    before = values(Map(weights, STRING, STRING, kind))
    after = values(Map(weights[torch.tensor(order)], STRING, STRING, kind))
    assert after == {name: [row[head] for head in order] for name, row in before.items()}
    assert all(0 <= value <= 1 for name, row in before.items() if name != "mean_distance" for value in row)


@pytest.mark.parametrize(("share", "named"), [(0.49, False), (0.5, True)])
def test_half_of_the_weight_makes_a_pattern(share: float, named: bool) -> None:
    rest = (1 - share) / (SIZE - 1)
    weights = torch.full((1, SIZE, SIZE), rest) + torch.eye(SIZE) * (share - rest)
    flat = Map(torch.full((1, SIZE, SIZE), 1 / SIZE), STRING, STRING, "encoder")
    names = strongest(head_statistics([flat, flat._replace(weights=weights)]))
    assert [[head and head.pattern for head in row] for row in names] == [[None], ["diagonal" if named else None]]
    assert strongest([]) == []
