"""Tokens as points: the table's, and what their context makes of them; readable by TensorBoard."""

from typing import Any

import pytest
import torch
from google.protobuf import text_format
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from minitx.config.schema import EmbeddingLogConfig
from minitx.data.examples import Stream
from minitx.training.callbacks.log_embeddings import COLUMNS, token_points, visible
from predictors import CHARACTERS, EVERY, built

STACKS = {"encoder_decoder": ["encoder", "decoder"], "decoder_only": ["decoder"], "encoder_only": ["encoder"]}


@pytest.mark.parametrize("architecture", EVERY)
def test_each_token_is_there_once_as_in_the_table_and_once_for_each_place(architecture: str) -> None:
    predictor = built(architecture)
    points = list(token_points(predictor, EmbeddingLogConfig(examples=4)))
    assert [stack for stack, *_ in points] == STACKS[architecture]
    pairs = predictor.task.examples("validation", 4)
    batch = pairs.frame(architecture, predictor.tokenizer.special)
    kept = {"encoder": batch.src, "decoder": batch.tgt}
    table = predictor.model.embedding
    with torch.no_grad():
        logits = predictor.model(**batch.model_inputs())
    for stack, vectors, labels in points:
        assert len(labels) == len(vectors)
        static = {token: vector for (token, kind, *_), vector in zip(labels, vectors, strict=True) if kind == "table"}
        contextual = [
            (token, int(row) - 1, int(place) - 1, vector)
            for (token, kind, row, place), vector in zip(labels, vectors, strict=True)
            if kind == stack
        ]
        assert len(static) + len(contextual) == len(labels)
        assert set(static) == {token for token, *_ in contextual}
        ids = kept[stack]
        assert ids is not None
        special = predictor.tokenizer.special
        real = (ids != special.pad) & (ids != special.eos)
        assert len(contextual) == int(real.sum())
        for token, row, place, vector in contextual:
            assert predictor.tokenizer.tokens([int(ids[row, place])]) == [token]
            assert torch.allclose(static[token], table(ids[row, place]), atol=1e-6)
            with torch.no_grad():
                if (stack, architecture) == ("encoder", "encoder_decoder"):
                    memory = predictor.model.encode(pairs.source[row : row + 1], pairs.source_keep[row : row + 1])[0]
                    assert torch.allclose(vector, memory[place], atol=1e-5)
                else:  # the head reads what stands above the last stack
                    assert torch.allclose(predictor.model.head(vector), logits[row, place], atol=1e-4)
        assert len({tuple(vector.tolist()) for *_, vector in contextual}) > len(static), "context moves a token"


def test_how_much_is_shown_is_bounded() -> None:
    predictor = built("decoder_only", text=True)
    ids = torch.randint(6, 14, (5, 9))
    predictor.task.examples = lambda split, limit=None: Stream(ids)  # type: ignore[method-assign]
    try:
        for config, expected in (
            (EmbeddingLogConfig(examples=2, max_tokens=3), 6),
            (EmbeddingLogConfig(examples=2, max_tokens=30), 16),
            (EmbeddingLogConfig(examples=5, max_points=7), 7),
        ):
            ((*_, points),) = token_points(predictor, config)
            assert sum(kind == "decoder" for _, kind, *_ in points) == expected
            first = CHARACTERS.tokens([int(ids[0, 0])])
            assert [*map(visible, first), "decoder", "1", "1"] in points
    finally:
        del predictor.task.examples


@pytest.mark.parametrize(
    ("token", "shown"),
    [("word", "word"), (" ", "␣"), ("  ", "␣␣"), ("\n", r"'\n'"), ("a\tb\nc\r", r"a\tb\nc\r"), ("", "''"), ("ü", "ü"),
     ("\u2028x", r"\u2028x"), ("<b>", "<b>")],
)  # fmt: skip
def test_labels_stay_on_their_line_and_in_their_column(token: str, shown: str) -> None:
    assert visible(token) == shown
    assert len(f"{visible(token)}\tx".splitlines()) == 1


def test_a_run_writes_them_at_its_end(trained: Any) -> None:
    folder = trained(log={"embeddings": {"examples": 3}})
    config = text_format.Parse((folder / "projector_config.pbtxt").read_text(), ProjectorConfig())
    assert [part.tensor_name.split(":")[0] for part in config.embeddings] == ["encoder", "decoder"]
    for part in config.embeddings:
        vectors = (folder / part.tensor_path).read_text().splitlines()
        header, *labels = (folder / part.metadata_path).read_text().splitlines()
        assert header.split("\t") == COLUMNS
        assert len(labels) == len(vectors) > 0
        assert {len(line.split("\t")) for line in labels} == {len(COLUMNS)}
        assert {len(line.split("\t")) for line in vectors} == {32}
