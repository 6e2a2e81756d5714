"""Tokens as points: the table's, and what their context makes of them; readable by TensorBoard."""

from typing import Any

import pytest
import torch

from minitx.config.schema import EmbeddingLogConfig
from minitx.data.examples import Stream
from minitx.tensorboard.map_format import visible
from minitx.training.callbacks.log_embeddings import COLUMNS, token_points
from predictors import CHARACTERS, KINDS_OF, built
from small_models import close


@pytest.mark.parametrize("architecture", KINDS_OF)
@torch.no_grad()
def test_each_token_is_there_once_as_in_the_table_and_once_for_each_place(architecture: str) -> None:
    predictor = built(architecture)
    points = list(token_points(predictor, EmbeddingLogConfig(examples=4)))
    assert [stack for stack, *_ in points] == [kind for kind in KINDS_OF[architecture] if kind != "cross"]
    model, special = predictor.model, predictor.tokenizer.special
    pairs = predictor.task.examples("validation", 4)
    batch = pairs.frame(architecture, special)
    logits = model(**batch.model_inputs())
    for stack, vectors, labels in points:
        ids: Any = {"encoder": batch.src, "decoder": batch.tgt}[stack]
        real = (ids != special.pad) & (ids != special.eos)
        tokens = predictor.tokenizer.tokens(ids[real].tolist())
        first = dict(zip(reversed(tokens), reversed(model.embedding(ids)[real]), strict=True))
        static, contextual = vectors.split([len(first), len(tokens)])
        places = [[stack, str(row + 1), str(place + 1)] for row, place in real.nonzero().tolist()]
        assert sorted(labels[: len(first)]) == sorted([token, "table", "-", "-"] for token in first)
        assert labels[len(first) :] == [[token, *place] for token, place in zip(tokens, places, strict=True)]
        close(static, torch.stack([first[token] for token, *_ in labels[: len(first)]]))
        if (stack, architecture) == ("encoder", "encoder_decoder"):
            close(contextual, model.encode(pairs.source, pairs.source_keep)[real])
        else:  # the head reads what stands above the last stack
            close(model.head(contextual), logits[real], 1e-4)
        assert len(contextual.unique(dim=0)) > len(first), "context moves a token"


@pytest.mark.parametrize(("limits", "size"), [({"max_tokens": 3}, 6), ({"max_tokens": 30}, 16), ({"max_points": 7}, 7)])
def test_how_much_is_shown_is_bounded(monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], size: int) -> None:
    predictor, ids = built("decoder_only", text=True), torch.randint(6, 14, (5, 9))
    monkeypatch.setattr(predictor.task, "examples", lambda split, limit=None: Stream(ids))
    ((*_, points),) = token_points(predictor, EmbeddingLogConfig(examples=2, **limits))
    assert sum(kind == "decoder" for _, kind, *_ in points) == size
    assert [*map(visible, CHARACTERS.tokens([int(ids[0, 0])])), "decoder", "1", "1"] in points


def test_labels_stay_on_their_line_and_in_their_column() -> None:
    labels = {" ": "␣", "  ": "␣␣", "": "''", "\n": r"'\n'", "a\tb\nc\r": r"a\tb\nc\r", "\u2028x": r"\u2028x"}
    for token, label in {**labels, "word": "word", "ü": "ü", "<b>": "<b>"}.items():
        assert visible(token) == label
        assert len(f"{label}\tx".splitlines()) == 1


def test_a_run_writes_them_at_its_end(trained: Any) -> None:
    folder = trained(log={"embeddings": {"examples": 3}})
    for stack in ("encoder", "decoder"):
        (metadata,), (tensors,) = (folder.glob(f"*/{stack}/{name}.tsv") for name in ("metadata", "tensors"))
        header, *labels = (line.split("\t") for line in metadata.read_text().splitlines())
        assert (header, {len(line) for line in labels}) == (COLUMNS, {len(COLUMNS)})
        assert len(labels) == len(tensors.read_text().splitlines())
