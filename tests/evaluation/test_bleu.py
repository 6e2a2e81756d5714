"""Scores of whole texts: sacreBLEU's own, of the model's outputs."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import sacrebleu
import torch

from minitx.cli.main import main
from minitx.config.errors import ConfigError
from minitx.config.schema import Config, ModelConfig
from minitx.evaluation import bleu
from minitx.evaluation.bleu import text_scores, translated
from minitx.evaluation.report import evaluation_report
from minitx.generation.options import GenerationOptions
from minitx.inference import text_generation
from minitx.inference.predictor import Predictor, load
from minitx.inference.text_generation import TextGenerator
from minitx.training.api import train_config as train
from parallel_files import make_files, write_split
from predictors import untrained
from tests.training.conftest import small_values
from tests.training.interrupting import scalars, state

WRITTEN = ["A man in a hat.", "Two dogs run over the grass .", "a Cat", ""]
WANTED = ["A man with a hat.", "Two dogs are running over the grass.", "A cat", "Nothing"]


def predictor(folder: Path, architecture: Any = "encoder_decoder", **data: Any) -> Predictor:
    """A random model, which writes something of several lengths."""
    options = {"name": "translation", "path": str(folder), "tokenizer": {"name": "bpe", "size": 300}, **data}
    sizes = ModelConfig(architecture=architecture, d_model=16, n_heads=2, n_layers=1, tie_embeddings=False)
    random = untrained(Config(data={**options, "max_tokens": 12}, model=sizes))
    for parameter in random.model.parameters():
        parameter.data.mul_(3)
    return random


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_files(tmp_path)


@pytest.mark.parametrize(("processes", "lowercase"), [(1, True), (3, False), (5, False)])
def test_bleu_of_added_up_shares_is_bleu_of_the_whole(processes: int, lowercase: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(bleu, "translated", lambda predictor, sources: sources)
    predictor: Any = SimpleNamespace(task=SimpleNamespace(lowercase=lowercase), device="cpu")
    sums, pairs = torch.zeros(10, dtype=torch.long), [*zip(WRITTEN, WANTED, strict=True)]
    for rank in range(processes):  # one after the other: the last has the sum of all
        found = bleu.reduced_bleu(predictor, pairs[rank::processes], lambda counts, reduce_op: sums.add_(counts))
    assert found == pytest.approx(sacrebleu.corpus_bleu(WRITTEN, [WANTED], lowercase=lowercase).score)


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_scores_are_those_of_texts_one_by_one(folder: Path, architecture: str, monkeypatch: Any) -> None:
    options = None if architecture == "decoder_only" else GenerationOptions(num_beams=3, early_stopping=True)
    monkeypatch.setattr(text_generation, "MAX_ROWS", 2)
    model = predictor(folder, architecture)
    sentences = model.task.sentences("test")
    alone = [model.generate(source, **vars(options or GenerationOptions())) for source, _ in sentences]
    assert len({*alone}) > 2
    whole = TextGenerator._generate_batch
    with patch.object(TextGenerator, "_generate_batch", autospec=True, side_effect=whole) as batches:
        assert translated(model, [source for source, _ in sentences[::-1]], options) == alone[::-1]
    assert max(len(call.args[1]) for call in batches.mock_calls) == (2 if options is None else 1), "beams are rows"
    figures, references = text_scores(model, sentences, options), [target for _, target in sentences]
    assert figures["bleu"] == sacrebleu.corpus_bleu(alone, [references]).score
    assert figures["chrf"] == sacrebleu.corpus_chrf(alone, [references]).score
    assert figures["bleu_lowercase"] == sacrebleu.corpus_bleu(alone, [references], lowercase=True).score
    cases = {name: text.split("case:")[1].split("|")[0] for name, text in figures["signatures"].items()}
    assert cases == {"bleu": "mixed", "bleu_lowercase": "lc", "chrf": "mixed"}
    assert figures["decoding"] == ("greedy" if options is None else "3 beams, early stopping true")


def test_a_model_that_generates_the_references_scores_100(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_split(folder, "test", long := [(f"acht neun zehn elf {n}", f"Eight nine ten ΟΔΟΣ {n}") for n in range(9)])
    for lowercase in (False, True):
        model = predictor(folder, lowercase=lowercase)
        answers = [model.tokenizer.decode(model.tokenizer.encode(text)) for _, text in long]
        monkeypatch.setattr(bleu, "translated", lambda *_: answers)  # noqa: B023
        figures = evaluation_report(model)
        assert (figures["split"], figures["examples"], figures["exact_match"]) == ("test", 9, 1.0)
        assert [figures["bleu"], figures["chrf"]] == pytest.approx([100, 100])
        assert ("bleu_lowercase" in figures) is not lowercase
        assert all("case:lc" in figures["signatures"][name] for name in ("bleu", "chrf")) is lowercase
        answers[0] += "."
        assert evaluation_report(model)["exact_match"] == pytest.approx(8 / 9)
        assert evaluation_report(model)["bleu"] < 100


@pytest.mark.parametrize("tokenizer", [{"name": "word", "size": 100}, {"name": "char"}])
def test_an_unknown_word_is_translated_as_in_an_evaluation(folder: Path, tokenizer: dict[str, Any]) -> None:
    model = predictor(folder, tokenizer=tokenizer)
    assert translated(model, ["acht 字", "字"]) == model.generate(["acht 字", "字"])
    with pytest.raises(ValueError, match=r"stop must name single tokens, got '字', which is .*<unk>"):
        model.generate("acht", stop="字")


def trained_on(folder: Path, optimizer: Any = None, **trainer: int) -> dict[str, Any]:
    optimizer = optimizer or {"lr": 1e-2}
    values = small_values(folder, model={"architecture": "decoder_only"}, optimizer=optimizer, trainer=trainer)
    data = {"name": "translation", "path": str(folder), "tokenizer": {"name": "word", "size": 50}, "max_tokens": 20}
    return train({**values, "data": {**data, "batch_size": 32}})


def test_a_run_is_selected_and_evaluated_by_bleu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = trained_on(folder, max_steps=60, val_every_n_steps=30, save_every_n_steps=60)
    out = capsys.readouterr().out
    assert ("100 pairs to train on" in out, out.count("validation BLEU")) == (True, 2)
    trained = load(run := folder / "runs/small/v0", device="cpu")
    again = text_scores(trained, trained.task.sentences("test"))
    assert again["bleu"] > 0
    assert {key: results[key] for key in again} == again
    best = text_scores(trained, trained.task.sentences("validation"))["bleu"]
    assert max(value for _, value in scalars(run)["validation/bleu"]) == pytest.approx(best, rel=1e-5)
    words = ["--split=validation", "--num_beams=3", "--length_penalty=0.7", "--json", str(folder / "out.json")]
    main(["evaluate", str(run), *words])
    report, table = json.loads((folder / "out.json").read_text()), capsys.readouterr().out
    beams = GenerationOptions(num_beams=3, length_penalty=0.7)
    assert report.items() >= text_scores(trained, trained.task.sentences("validation"), beams).items()
    assert {"loss", "token_accuracy"} <= {*report}
    for name in ("bleu", "chrf"):
        assert re.search(rf"^  {name} \(.* {report[name]:.2f}$", table, re.MULTILINE)
        assert re.search(rf"^    {name} +{re.escape(report['signatures'][name])}$", table, re.MULTILINE)
    assert "3 beams, length penalty 0.7;" in table


def test_a_validation_of_nan_has_no_bleu_and_the_run_is_saved(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the model computes NaN"):  # of the evaluation after training
        trained_on(folder, {"lr": 1e30, "schedule": {"warmup_steps": 0}}, max_steps=4, skip_nonfinite_steps=True)
    assert state(folder / "runs/small/v0")["global_step"] == 4


def test_the_best_checkpoint_has_the_highest_bleu_whatever_its_loss(folder: Path, monkeypatch: Any) -> None:
    figures = iter([3.0, 9.0, 6.0])
    monkeypatch.setattr(bleu, "reduced_bleu", lambda predictor, sentences, reduce: next(figures))
    trained_on(folder, max_steps=6, val_every_n_steps=2)
    assert next(figures, None) is None, "one for each validation"
    assert state(folder / "runs/small/v0", "best")["global_step"] == 4
