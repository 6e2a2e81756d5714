import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.examples import Stream
from minitx.data.tasks import Text, generator
from minitx.data.text import corpora

datasets = pytest.importorskip("datasets")

Writer = Callable[..., Text]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """make(content, **options): the task on a file of its own."""
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    written = 0

    def task(content: str, **options: object) -> Text:
        nonlocal written
        written += 1
        path = tmp_path / f"{written}.txt"
        path.write_text(content, newline="")
        return Text(path=str(path), **options)  # type: ignore[arg-type]

    return task


def distinct(length: int) -> str:
    """A text of different characters."""
    return "".join(chr(0x4E00 + place) for place in range(length))


def words(length: int) -> str:
    return " ".join(f"w{number}\n" if number % 7 == 0 else f"w{number}" for number in range(length))[:length]


def spelt(task: Text, ids: Tensor) -> str:
    return task.vocabulary.decode(ids.flatten().tolist())


def predicted(task: Text, stream: Stream) -> str:
    """The text that a model predicts, example after example."""
    labels = stream.ids[:, 1:]
    return spelt(task, labels[labels != task.vocabulary.special.pad])


@pytest.mark.parametrize("block", [1, 7])
def test_training_blocks_are_pieces_of_the_training_part_and_reach_all_of_it(make: Writer, block: int) -> None:
    text = distinct(60)
    task = make(text, block=block, validation_share=0.2, test_share=0.1)
    training = text[:42]
    ids = task.batch(generator(1), 3000).ids
    assert ids.shape == (3000, block + 1)
    pieces = {spelt(task, row) for row in ids}
    assert pieces == {training[start : start + block + 1] for start in range(len(training) - block)}


@pytest.mark.parametrize("length", [100, 237])
@pytest.mark.parametrize("block", [1, 9])
def test_validation_asks_for_the_whole_held_out_text_once_and_in_order(make: Writer, length: int, block: int) -> None:
    text = words(length)
    task = make(text, block=block, validation_share=0.3)
    stream = task.examples("validation")
    held_out = text[int(length * 0.7) :]
    assert stream.ids.size(1) == block + 1
    assert (stream.ids[:, 1] != task.vocabulary.special.pad).all(), "every example predicts a token"
    assert spelt(task, stream.ids[0, :1]) + predicted(task, stream) == held_out
    # What is read for each prediction is what stands before it.
    for row in stream.ids:
        real = row[row != task.vocabulary.special.pad]
        assert spelt(task, real) in held_out


def test_the_three_parts_follow_one_another_and_share_nothing(make: Writer) -> None:
    text = distinct(200)
    task = make(text, block=5, validation_share=0.1, test_share=0.25)
    test, validation = task.examples("test"), task.examples("validation")
    assert spelt(task, test.ids[0, :1]) + predicted(task, test) == text[130:180]
    assert spelt(task, validation.ids[0, :1]) + predicted(task, validation) == text[180:]
    seen = set(spelt(task, task.batch(generator(1), 2000).ids))
    assert seen == set(text[:130])


def test_a_limit_takes_examples_evenly_from_beginning_to_end(make: Writer) -> None:
    text = distinct(1000)
    task = make(text, block=4, validation_share=0.5)
    everything = task.examples("validation").ids
    for limit in (1, 5, 30):
        ids = task.examples("validation", limit).ids
        places = [int((everything == row).all(dim=1).nonzero()[0, 0]) for row in ids]
        assert len(places) == len(set(places)) == limit
        assert places[0] == 0
        if limit > 1:
            assert places[-1] == len(everything) - 1
            gaps = [after - before for before, after in itertools.pairwise(places)]
            assert max(gaps) - min(gaps) <= 1
    assert torch.equal(task.examples("validation", 5).ids, task.examples("validation", 5).ids)


def test_a_tokenizer_of_a_checkpoint_replaces_the_texts_own(make: Writer) -> None:
    before, after = make("abcabcabc" * 5, block=4), make("cabzcabz" * 5, block=4)
    after.vocabulary = before.vocabulary
    ids = after.batch(generator(1), 50).ids
    assert before.vocabulary.special.unk in ids, "z is unknown to the older tokenizer"
    assert set(before.vocabulary.decode(ids.flatten().tolist())) == set("abc")


@pytest.mark.parametrize(("length", "block"), [(5, 128), (9, 10), (90, 90), (99, 90)])
def test_a_text_too_short_for_a_block_is_refused(make: Writer, length: int, block: int) -> None:
    task = make("x" * length, block=block)
    for use in (lambda: task.batch(generator(1), 2), lambda: task.examples("validation")):
        with pytest.raises(ValueError, match=r"data\.block") as caught:
            use()
        assert str(block) in str(caught.value)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_share_of_nothing_is_refused(make: Writer, split: str) -> None:
    task = make("some text " * 10, block=4, validation_share=0.0)
    with pytest.raises(ValueError, match=rf"data\.{split}_share"):
        task.examples(split)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokenizer", "sentence"),
    [
        ({"name": "bp"}, r"data\.tokenizer\.name: unknown name 'bp'; did you mean bpe\?"),
        ({"size": 300}, r"data\.tokenizer\.name is missing: it is one of bpe, byte"),
        ({"name": "char", "size": 300}, r"unknown key data\.tokenizer\.size: it has none"),
        ({"name": "bpe", "size": 261}, r"data\.tokenizer\.size: expected an integer of at least 262, got 261"),
    ],
)
def test_an_unknown_tokenizer_is_refused(make: Writer, tokenizer: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        _ = make("some text", tokenizer=tokenizer).vocabulary


def test_nothing_is_read_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "load", lambda path: pytest.fail("read the corpus"))
    task = Text(path="/nowhere/at/all.txt", block=12)
    assert task.longest == (0, 12)
    assert task.final_split == "validation"


@pytest.mark.parametrize("content", [b"", b"\xff\xff\xff", None])
def test_a_bad_file_is_a_sentence_at_the_first_use(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    for use in (lambda task: task.vocabulary, lambda task: task.batch(generator(1), 1)):
        with pytest.raises(ValueError, match=r"data\.path") as caught:
            use(Text(path=str(path)))
        assert os.fspath(path) in str(caught.value)
