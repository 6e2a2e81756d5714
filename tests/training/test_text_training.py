"""Running text, masked text and packed documents, from a config to a checkpoint that is used."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minitx
from minitx.cli.main import main
from minitx.config.schema import Config
from minitx.data.example_texts import _longest_document
from minitx.data.tasks import TASKS
from minitx.data.text import corpora
from minitx.training.api import train_config as train
from minitx.training.describe import describe
from minitx.training.resolve import resolve
from tests.training.interrupting import events

TEXTS = ["the cat sat", "on\x00 a mat", "x", "and slept.\nAll day"] * 40


@pytest.fixture
def packed(small: Any, tmp_path: Path) -> Callable[..., Config]:
    """packed(architecture, texts, data={key: value}, ...): a config of language modelling on short documents."""

    def make(architecture: str = "decoder_only", texts: list[str] = TEXTS, data: Any = None, **sections: Any) -> Config:
        table = tmp_path / "table.jsonl"
        table.write_text("\n".join(json.dumps({"text": text}) for text in texts))
        name = "text" if architecture == "decoder_only" else "masked_text"
        data = {"name": name, "path": str(table), "isolate": True, **(data or {})}
        shown = {"attention": {"pictures": architecture == "decoder_only"}}
        trainer = {"max_steps": 2, **sections.pop("trainer", {})}
        return small(data=data, model={"architecture": architecture}, trainer=trainer, log=shown, **sections)

    return make


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_only"])
def test_a_run_with_its_pictures_and_its_report(packed: Callable, folder: Path, architecture: str, capsys: Any) -> None:
    results = train(packed(architecture))
    log = events(folder)
    assert bool(log.Tags()["images"]) == (architecture == "decoder_only")
    assert "answers/text_summary" in log.Tags()["tensors"]
    main(["evaluate", str(folder), "--device", "cpu"])
    assert f"{results['loss']:.4f}" in capsys.readouterr().out
    predictor = minitx.load(folder, device="cpu")
    batch = predictor.task.examples("validation", 3).frame(architecture, predictor.tokenizer.special)
    assert len(batch.model_inputs()["documents"].unique()) > 1, "no head looks into another one: test_dependence.py"
    for texts, words in ((TEXTS, ["evaluate"]), (TEXTS[1:], ["evaluate"]), (TEXTS[1:], ["ablate", "--examples=2"])):
        assert "parameters" in describe(resolve(packed(architecture, texts)))
        main([*words, str(folder), "--device", "cpu"])
        assert ("the data has changed since this model was trained: " in capsys.readouterr().err) == (texts != TEXTS)


def test_a_model_learns_where_a_document_ends(packed: Callable, tmp_path: Path) -> None:
    trainer = {"max_steps": 60, "val_every_n_steps": 60, "save_every_n_steps": 60}
    texts = ["abcde", "fgh"] * 100
    results = train(packed(texts=texts, data={"batch_size": 32}, trainer=trainer, optimizer={"lr": 1e-2}))
    assert results["loss"] < 0.1, "nothing is left to guess inside a document"
    assert minitx.load(tmp_path / "runs/small", device="cpu").generate(["a", "f"]) == ["bcde", "gh"]


LONG = ["several-+-longwords", "andmore", "several-+-wordsmore", "longer?andlonger"] * 40


@pytest.mark.parametrize(("architecture", "texts", "data"), [
    ("encoder_only", LONG, {"tokenizer": {"name": "byte"}}),
    ("decoder_only", LONG, {"tokenizer": {"name": "word", "size": 5}}),  # cannot encode its own decoded text
    ("encoder_only", LONG, {"tokenizer": {"name": "unigram", "size": 270}}),
    ("decoder_only", ["a", "b", "c"] * 60, {"block": 2}),
    ("decoder_only", ["a"] * 100, {"block": 2}),
])  # fmt: skip
def test_any_tokenizer_and_short_documents(packed: Callable, architecture: str, texts: Any, data: Any) -> None:
    assert train(packed(architecture, texts, data=data))["loss"] >= 0


def test_the_longest_document_of_a_row() -> None:
    for row, place in (([1, 2, 3], (0, 3)), ([9, 1, 2], (1, 3)), ([1, 9, 2, 3, 9], (2, 4)), ([9], (0, 0))):
        assert _longest_document(row, 9) == slice(*place), row


def test_masked_tokens_are_learnt(small: Any, cat: Path, folder: Path) -> None:
    """Long runs of one letter: a masked letter equals its neighbours."""
    cat.write_text("".join(letter * 40 for letter in "abcdefgh") * 10)
    data, model = {"name": "masked_text", "path": str(cat)}, {"architecture": "encoder_only"}
    trainer = {"max_steps": 120, "val_every_n_steps": 120, "save_every_n_steps": 120}
    assert train(small(data=data, model=model, trainer=trainer, optimizer={"lr": 1e-2}))["token_accuracy"] > 0.8
    assert minitx.load(folder, device="cpu").generate(["cc<mask>ccc<mask>", "<mask>ffffff"]) == ["ccccccc", "fffffff"]


def test_a_run_builds_its_task_and_opens_its_corpus_once(small: Any, cat: Path, folder: Path, monkeypatch: Any) -> None:
    """Others are built of the checkpoint that it starts from, and of the one that is evaluated."""
    calls, load, build = [], corpora.load, TASKS["text"].__post_init__
    monkeypatch.setattr(corpora, "load", lambda *given: calls.append("opened") or load(*given))
    monkeypatch.setattr(TASKS["text"], "__post_init__", lambda task: calls.append("built") or build(task))
    for steps, start in ((1, {}), (2, {"resume": True}), (1, {"init_from": str(folder)})):
        train(small(data={"path": str(cat)}, trainer={"max_steps": steps}), **start)
        assert (calls.count("opened"), calls.count("built")) == (1, 2 + len(start))
        calls.clear()
