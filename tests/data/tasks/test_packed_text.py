"""Documents in one stream, separated by <eos>, and isolated from one another if requested."""

import dataclasses
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from minitx.data.batch import IGNORE
from minitx.data.tasks import TASKS, Text, generator

DOCUMENTS = ["abc", "d", "efghij", "kl", "mnopqrs"] * 6


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Any]:
    """make(name, **options): the task on a table of DOCUMENTS, or of others."""

    def task(name: str = "text", documents_are: list[str] = DOCUMENTS, **options: object) -> Any:
        path = tmp_path / "table.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents_are))
        return TASKS[name](path=str(path), **{"block": 12, "validation_share": 0.3, **options})  # type: ignore[arg-type]

    return task


def test_an_end_token_stands_between_two_documents(make: Callable) -> None:
    task = make()
    stream = torch.cat([torch.from_numpy(task._parts[part].astype("int64")) for part in ("training", "validation")])
    assert "".join(task.vocabulary.tokens(stream.tolist())) == "<eos>".join(DOCUMENTS)


def test_with_isolation_nothing_is_predicted_across_a_border(make: Callable) -> None:
    task = make(isolate=True)
    stream = task.batch(generator(1), 50)
    assert stream.documents is not None
    assert torch.equal(stream.ids, make().batch(generator(1), 50).ids)
    batch = stream.frame("decoder_only", task.vocabulary.special)
    end = task.vocabulary.special.eos
    assert torch.equal(batch.labels == IGNORE, batch.tgt == end), "the token after an end belongs to another document"
    assert torch.equal(batch.labels[batch.labels != IGNORE], stream.ids[:, 1:][batch.tgt != end])
    assert (batch.labels == end).any(), "that a document ends is predicted"
    assert torch.equal(batch.model_inputs()["documents"], stream.documents[:, :-1])
    for row, numbers in zip(batch.tgt.tolist(), batch.documents.tolist(), strict=True):
        for place in range(1, len(row)):
            assert numbers[place] == numbers[place - 1] + (row[place - 1] == end)


def test_padding_is_still_not_predicted(make: Callable) -> None:
    task = make(isolate=True)
    stream = task.examples("validation")
    padding = stream.ids[:, 1:] == task.vocabulary.special.pad
    assert padding.any()
    assert (stream.frame("decoder_only", task.vocabulary.special).labels[padding] == IGNORE).all()


def parts(ids: torch.Tensor, end: int) -> list[slice]:
    ends = [place + 1 for place, token in enumerate(ids.tolist()) if token == end]
    borders = [0, *ends] if ends and ends[-1] == len(ids) else [0, *ends, len(ids)]
    return [slice(a, b) for a, b in pairwise(borders)]


@pytest.mark.parametrize("scheme", ["sinusoidal", "rope"])
@pytest.mark.parametrize(("name", "architecture"), [("text", "decoder_only"), ("masked_text", "encoder_only")])
def test_isolated_documents_are_read_as_if_alone(
    make: Callable, tiny: Any, name: str, architecture: str, scheme: str
) -> None:
    task = make(name, isolate=True, block=20, documents_are=["abc", "d", "cadbac", "ba", "abcdabc"] * 6)
    model = tiny(architecture, scheme)
    batch = task.batch(generator(1), 4).frame(architecture, task.vocabulary.special)
    ids = batch.tgt if batch.src is None else batch.src
    together = model(**dataclasses.replace(batch, documents=None).model_inputs())
    packed = model(**batch.model_inputs())
    apart, differs = 0, False
    for row in range(4):
        answers = task.vocabulary.special.eos
        for place in parts(ids[row], answers):
            alone = model(ids[row : row + 1, place])[0]
            torch.testing.assert_close(packed[row, place], alone, rtol=1e-5, atol=1e-5)
            differs |= not torch.allclose(together[row, place], alone, rtol=1e-3, atol=1e-3)
            apart += 1
    assert apart > 8
    assert differs, "without isolation they see each other"


def test_nothing_to_isolate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("some text\n\nand more\n\n" * 20)
    task = Text(path=str(tmp_path / "x.txt"), isolate=True, block=4)
    with pytest.raises(ValueError, match=r"data\.isolate: .*x\.txt is read as one running text; set data\.documents"):
        _ = task.vocabulary
    assert Text(path=str(tmp_path / "x.txt"), isolate=True, block=4, documents="paragraph").batch(generator(1), 2)
