"""Head statistics are their definitions in plain Python: of an example, of several, and of a task in any batches."""

import math
from statistics import fmean
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from minitx.data.examples import Stream
from minitx.data.prompts import labels
from minitx.interpret import task_statistics as heads
from minitx.interpret.attention_maps import attention_maps
from minitx.interpret.head_statistics import HeadSums, head_statistics
from minitx.interpret.recording import KINDS, Map
from minitx.interpret.task_statistics import task_statistics
from minitx.tensorboard.map_format import Statistic
from predictors import CHARACTERS, EVERY, KINDS_OF, LAYERS, LONGEST, SYMBOLS, built


def definitions(layer: Map, head: int) -> dict[str, list[float]]:
    """Each measure of a head, in plain Python: a number for each counted row. In cross-attention, row 0 reads <bos> and
    predicts the first token; the last row predicts the end: not counted."""
    rows, keys, kind = layer.weights[head].tolist(), len(layer.keys), layer.kind
    size = len(rows)
    later = (layer.weights > 0).any(0).triu(1).sum(1).tolist()  # in a bidirectional prefix
    visible = [keys if kind != "decoder" else row + 1 + later[row] for row in range(size)]
    counted = [row for row in range(size) if visible[row] > 1]
    prompt = layer.queries.index("<sep>") if kind == "decoder" and "<sep>" in layer.queries else None
    answering = range(size) if prompt is None else range(prompt, size - 1)
    asked = [*range(prompt or 0)] if kind == "decoder" else [*range(keys)]  # without <bos> and <eos> of a question
    asked = [key for key in asked if kind == "encoder" or layer.keys[key] not in ("<bos>", "<eos>")]
    own = asked if kind == "cross" else [*range(keys)]  # by row, the key at its position
    aligned = [row for row in counted if row < len(own) and (kind != "cross" or row < size - 1)]
    mirrored = [*enumerate(answering)] if kind == "decoder" else [(row, row) for row in aligned]
    numbers = {
        "entropy": [-sum(w * math.log(w) for w in rows[row] if w) / math.log(visible[row]) for row in counted],
        "diagonal": [rows[row][own[row]] for row in aligned],
        "antidiagonal": [rows[row][asked[-1 - place]] for place, row in mirrored if place < len(asked)],
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
    return {name: values for name, values in numbers.items() if values}


def random_map(kind: str, text: str, other: str) -> Map:
    """Of two heads and these tokens; the other text is the keys of cross-attention, or as long as a prompt's prefix."""
    queries, keys = ([SPECIAL.get(token, token) for token in side] for side in (text, other))
    keys = keys if kind == "cross" else queries
    scores = 3 * torch.randn(2, len(queries), len(keys))
    if kind == "decoder":
        hidden = torch.ones_like(scores).triu(1).bool()
        hidden[1, : len(other), : len(other)] = False  # one head alone attends to later tokens
        scores = scores.masked_fill(hidden, -torch.inf)
    return Map(scores.softmax(dim=-1), queries, keys, kind)


def values(found: list[Statistic], head: int) -> dict[str, float | None]:
    return {statistic.name: statistic.values[0][head] for statistic in found}


SPECIAL = {"|": "<sep>", "^": "<bos>", "$": "<eos>"}
OWN = st.from_regex(r"(\^?[abc]{0,5}\$?\|)?[abc|]{0,5}", fullmatch=True)
OTHER = st.from_regex(r"\^?[ab]{0,9}\$?", fullmatch=True)
TEXTS = st.lists(st.tuples(OWN, OTHER), min_size=1, max_size=3)


@given(st.integers(0, 10_000), st.sampled_from(sorted(KINDS)), TEXTS)
@example(0, "decoder", [("abcb|ca", "abcb"), ("abca", "")])  # one with a bidirectional prompt
def test_every_measure_is_the_mean_of_its_definition(seed: int, kind: str, texts: list[tuple[str, str]]) -> None:
    """Of each example, and over the rows of several."""
    torch.manual_seed(seed)
    sums, layers = HeadSums(), [random_map(kind, *text) for text in texts]
    alone = [sums.add([layer]) for layer in layers]
    for head in (0, 1):
        every: dict[str, list[float]] = {}
        for layer, own in zip(layers, alone, strict=True):
            numbers = definitions(layer, head)
            assert values(own, head) == pytest.approx({name: fmean(each) for name, each in numbers.items()}, abs=1e-4)
            for name, each in numbers.items():
                every.setdefault(name, []).extend(each)
        expected = {name: fmean(each) for name, each in every.items()}
        assert values(sums.statistics(), head) == pytest.approx(expected, abs=1e-4)
    assert head_statistics([]) == []


@pytest.mark.parametrize("architecture", EVERY)
def test_means_are_over_the_rows_of_all_examples(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured without dropout, after which the model is in its mode again."""
    predictor = built(architecture, dropout=0.5)
    examples = predictor.task.examples("test", 7)
    predictor.model.train()
    whole = task_statistics(predictor, 7)
    assert predictor.model.training
    predictor.model.eval()
    assert set(whole) == {*KINDS_OF[architecture]}
    monkeypatch.setattr(heads, "MAX_WEIGHTS", 3 * 2 * LAYERS * (2 * LONGEST + 1) ** 2)  # a few at a time, other padding
    measured = Mock(side_effect=attention_maps)
    monkeypatch.setattr(heads, "attention_maps", measured)
    assert task_statistics(predictor, 7, "test") == whole
    assert measured.call_count > 1
    assert task_statistics(predictor, 7, "validation") != whole
    sums = {kind: HeadSums() for kind in whole}
    for number in range(7):  # one by one: nothing is padded
        batch = examples.slice(number, number + 1).frame(architecture, SYMBOLS.special)
        maps = attention_maps(predictor.model, batch.model_inputs(), labels(batch, SYMBOLS))
        for kind in whole:
            sums[kind].add(maps.layers(kind))
    for kind, found in whole.items():
        for one, other in zip(found, sums[kind].statistics(), strict=True):
            assert one[:3] == other[:3]
            assert np.array(one.values) == pytest.approx(np.array(other.values), abs=2e-4), (kind, one.name)


def test_long_text_is_cut_and_an_end_between_documents_is_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, end, pad = built("decoder_only", text=True), CHARACTERS.special.eos, CHARACTERS.special.pad
    ids = torch.tensor([[6, 7, 6, end, 8, 6, 7, 9, 6], [6, 7, 6, 6, 7, 8, pad, pad, pad]])
    batch = Stream(ids).frame("decoder_only", CHARACTERS.special)
    assert labels(batch, CHARACTERS)["target"][0] == CHARACTERS.tokens([6, 7, 6, end, 8, 6, 7, 9])
    assert len(labels(batch, CHARACTERS)["target"][1]) == 6
    monkeypatch.setattr(predictor.task, "examples", lambda split, limit: Stream(ids))
    whole = task_statistics(predictor)
    monkeypatch.setattr(heads, "MAX_TOKENS", 4)
    short = task_statistics(predictor)
    assert short != whole
    monkeypatch.setattr(predictor.task, "examples", lambda split, limit: Stream(ids[:, :5]))
    assert short == task_statistics(predictor), "four tokens are read, the fifth is what comes next"
