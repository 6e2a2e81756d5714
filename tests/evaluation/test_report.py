from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from minitx.config.schema import Config, ModelConfig
from minitx.data import tokenizers
from minitx.data.tasks import SequenceTask
from minitx.data.text.tokenizer_training import CharTokenizer
from minitx.evaluation import report
from minitx.evaluation.metrics import evaluate
from minitx.evaluation.report import evaluation_report, table
from minitx.inference.predictor import Predictor
from minitx.models.builder import build_model

TINY = {"d_model": 8, "n_heads": 2, "n_layers": 1}
SEQUENCES = {"name": "reverse", "symbols": 4, "length": [1, 5], "validation_size": 30, "test_size": 40}


def answering(architecture: str = "decoder_only") -> Predictor:
    """A random model for reversal."""
    torch.manual_seed(1)
    config = Config(data=SEQUENCES, model=ModelConfig(architecture=architecture, **TINY))  # type: ignore[arg-type]
    tokenizer = tokenizers.symbols(["0", "1", "2", "3"])
    return Predictor(build_model(config.model, tokenizer.vocab_size).eval(), tokenizer, config)


@pytest.fixture
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predictor:
    """A random language model, and the text that it was made for."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    text = "to be or not to be\n" * 20
    (tmp_path / "own.txt").write_text(text)
    torch.manual_seed(1)
    data = {"name": "text", "path": str(tmp_path / "own.txt"), "block": 16, "test_size": 40}
    config = Config(data=data, model=ModelConfig(architecture="decoder_only", **TINY))
    tokenizer = CharTokenizer().train([[text]])
    return Predictor(build_model(config.model, tokenizer.vocab_size).eval(), tokenizer, config)


# ---- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["test", "validation", None])
def test_figures_are_those_of_the_split(split: str | None) -> None:
    predictor = answering()
    figures = evaluation_report(predictor, split)
    held_out = predictor.task.examples(split or "test")  # type: ignore[arg-type]
    expected = evaluate(predictor.model, held_out, "decoder_only", predictor.tokenizer.special)
    assert figures == {"split": split or "test", "examples": expected.examples, **expected.means()}
    assert figures["examples"] == {"test": 40, "validation": 30}[split or "test"]
    assert {"exact_match", "token_accuracy", "loss"} <= set(figures)


def test_figures_by_length_are_those_of_each_length() -> None:
    predictor = answering()
    by_length = evaluation_report(predictor, lengths="3:7")["by_length"]
    assert list(by_length) == [3, 4, 5, 6, 7], "also past what the model was trained on"
    task = predictor.task
    assert isinstance(task, SequenceTask)
    for length, figures in by_length.items():
        examples = task.of_length(length).examples("test", report.EXAMPLES_PER_LENGTH)
        assert (examples.source_keep.sum(dim=1) == length).all()
        expected = evaluate(predictor.model, examples, "decoder_only", predictor.tokenizer.special)
        assert figures == {"examples": expected.examples, **expected.means()}


def test_a_length_without_held_out_examples_is_left_out() -> None:
    predictor = answering()
    task = predictor.task
    assert isinstance(task, SequenceTask)
    there = []
    for length in (1, 2, 3):
        try:
            task.of_length(length).examples("test")
            there.append(length)
        except ValueError:
            pass
    assert there != [1, 2, 3], "of four sequences of one symbol hardly any is held out"
    assert list(evaluation_report(predictor, lengths="1:3")["by_length"]) == there


def test_lengths_that_learned_positions_do_not_reach_are_left_out() -> None:
    torch.manual_seed(1)
    position = {"name": "learned", "max_len": 11}
    config = Config(data=SEQUENCES, model=ModelConfig(architecture="decoder_only", position=position, **TINY))  # type: ignore[arg-type]
    tokenizer = answering().tokenizer
    predictor = Predictor(build_model(config.model, tokenizer.vocab_size).eval(), tokenizer, config)
    assert list(evaluation_report(predictor, lengths="4:9")["by_length"]) == [4, 5], "5, a <sep> and 5 more"


def test_a_text_is_measured_on_its_held_out_end(reading: Predictor) -> None:
    figures = evaluation_report(reading)
    assert figures["split"] == "validation", "there is no test part"
    assert "exact_match" not in figures
    assert figures["bits_per_token"] == pytest.approx(figures["loss"] / math.log(2))
    task = reading.task
    labels = task.examples("validation").frame("decoder_only", reading.tokenizer.special).labels
    assert figures["examples"] == len(labels)


def test_another_text_is_read_with_the_models_own_tokenizer(reading: Predictor, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("not to be zzz!\n" * 20)  # with characters that the model does not know
    own = evaluation_report(reading)
    figures = evaluation_report(reading, path=str(other))
    assert math.isfinite(figures["loss"])
    assert figures["loss"] != own["loss"]
    assert evaluation_report(reading) == own, "the model's own text is still its own"


@pytest.mark.parametrize("split", ["training", "tset", ""])
def test_a_split_that_is_not_held_out_is_refused(split: str) -> None:
    with pytest.raises(ValueError, match=f"--split must be test or validation, got {split}"):
        evaluation_report(answering(), split)


@pytest.mark.parametrize("lengths", ["3", "3:", "5:3", "0:3", "a:b", "1:2:3"])
def test_lengths_that_are_no_range_are_refused(lengths: str) -> None:
    with pytest.raises(ValueError, match="--lengths must be FROM:TO"):
        evaluation_report(answering(), lengths=lengths)


def test_lengths_are_not_for_text(reading: Predictor) -> None:
    with pytest.raises(ValueError, match="--lengths is for tasks with questions and answers"):
        evaluation_report(reading, lengths="1:3")


def test_a_path_is_only_for_text() -> None:
    with pytest.raises(ValueError, match="--path is for language models and translation"):
        evaluation_report(answering(), path="some.txt")


# ---- the table -------------------------------------------------------------------------------------------------------

FIGURES = {"exact_match": 0.125, "token_accuracy": 0.5, "loss": 1.23456}


def test_a_table_tells_each_figure_with_its_meaning() -> None:
    lines = table({"split": "test", "examples": 12345, **FIGURES}).splitlines()
    assert "12,345 examples" in lines[0]
    assert "test" in lines[0]
    told = {line.split("(")[0].strip(): line for line in lines[1:]}
    assert list(told) == ["exact match", "token accuracy", "loss"]
    assert "free-running" in told["exact match"]
    assert told["exact match"].endswith(" 12.50 %")
    assert "teacher-forced" in told["token accuracy"]
    assert told["token accuracy"].endswith(" 50.00 %")
    assert told["loss"].endswith(" 1.2346")


def test_a_table_of_a_text_tells_bits_and_no_matches() -> None:
    told = table({"split": "validation", "examples": 3, "loss": 2.0, "token_accuracy": 0.5, "bits_per_token": 2.8854})
    assert "bits per token" in told
    assert "2.8854" in told
    assert "exact" not in told


def test_a_table_by_length_has_a_line_for_each() -> None:
    by_length = {3: {"examples": 10, **FIGURES}, 40: {"examples": 500, **FIGURES, "exact_match": 1.0}}
    lines = table({"split": "test", "examples": 1, **FIGURES, "by_length": by_length}).splitlines()
    header = next(line for line in lines if line.split()[:2] == ["length", "examples"])
    assert header.split() == ["length", "examples", "exact_match", "token_accuracy", "loss"]
    after = lines[lines.index(header) + 1 :]
    assert [line.split() for line in after] == [
        ["3", "10", "12.50", "%", "50.00", "%", "1.2346"],
        ["40", "500", "100.00", "%", "50.00", "%", "1.2346"],
    ]
    assert len({len(line) for line in (header, *after)}) == 1, "columns stand below their names"
