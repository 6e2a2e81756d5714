import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from minitx.config.errors import ConfigError
from minitx.config.schema import Config, ModelConfig
from minitx.evaluation import report
from minitx.evaluation.metrics import evaluate
from minitx.evaluation.report import evaluation_report, on_file, table
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from predictors import untrained

TINY: dict[str, Any] = {"d_model": 8, "n_heads": 2, "n_layers": 1}
SEQUENCES = {"name": "reverse", "symbols": 4, "length": [1, 5], "validation_size": 30, "test_size": 40}
FIGURES = {"exact_match": 0.125, "token_accuracy": 0.5, "loss": 1.23456}


def answering(**model: Any) -> Predictor:
    return untrained(Config(data=SEQUENCES, model=ModelConfig(architecture="decoder_only", **TINY, **model)))


@pytest.fixture
def reading(tmp_path: Path) -> Predictor:
    """A random language model and its text."""
    (tmp_path / "own.txt").write_text("to be or not to be\n" * 20)
    data = {"name": "text", "path": str(tmp_path / "own.txt"), "block": 16, "test_size": 40}
    return untrained(Config(data=data, model=ModelConfig(architecture="decoder_only", **TINY)))


@pytest.mark.parametrize("split", ["test", "validation", None])
def test_figures_are_those_of_the_split(split: str | None) -> None:
    predictor = answering()
    figures = evaluation_report(predictor, split)
    held_out = predictor.task.examples(split or "test")  # type: ignore[arg-type]
    expected = evaluate(predictor.model, held_out, "decoder_only", predictor.tokenizer.special)
    assert figures == {"split": split or "test", "examples": expected.examples, **expected.means()}
    assert figures["examples"] == {"test": 20, "validation": 19}[split or "test"]


def test_figures_by_length_are_those_of_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[Any, ...]] = []
    monkeypatch.setattr(report, "progress", lambda parts, *about, **_: shown.append((*parts, *about)) or parts)
    predictor = answering()
    by_length = evaluation_report(predictor, lengths="3:7")["by_length"]
    assert ([*by_length], (3, 4, 5, 6, 7, "by length") in shown) == ([3, 4, 5, 6, 7], True), "also past training"
    for length, figures in by_length.items():
        examples = predictor.task.of_length(length).examples("test", report.EXAMPLES_PER_LENGTH)
        assert (examples.source_keep.sum(dim=1) == length).all()
        expected = evaluate(predictor.model, examples, "decoder_only", predictor.tokenizer.special)
        assert figures == {"examples": expected.examples, **expected.means()}


def test_lengths_without_held_out_examples_or_positions_are_left_out() -> None:
    """Of four sequences of one symbol hardly any is held out."""
    by_length = evaluation_report(answering(), lengths="1:4")["by_length"]
    assert 0 < len(by_length) < 4
    for length in range(1, 5):
        with nullcontext() if length in by_length else pytest.raises(ConfigError, match="too few different"):
            answering().task.of_length(length).examples("test")  # type: ignore[attr-defined]
    report = evaluation_report(answering(position={"name": "learned", "max_len": 11}), lengths="4:9")
    assert list(report["by_length"]) == [4, 5], "5, a <sep> and 5 more"
    assert "longer ones have no" in table(report).splitlines()[-1]


def test_another_text_is_encoded_by_the_models_own_tokenizer(reading: Predictor, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("not to be zzz日!\n" * 20)  # with characters that the model does not know
    own, figures = evaluation_report(reading), evaluation_report(on_file(reading, str(other)))
    sizes = [figures["bits_per_token"] / figures[f"bits_per_{unit}"] for unit in ("character", "byte")]
    assert sizes == pytest.approx([1, (18 * 20 - 1) / (16 * 20 - 1)]), "finite too"
    assert (figures["loss"] != own["loss"], "unknown_tokens" in own) == (True, False)
    assert evaluation_report(reading) == own, "the model's own text is still its own"
    reading.task.documents, reading.task.isolate = "row", True  # this text has no rows, nor documents to isolate
    assert evaluation_report(on_file(reading, str(other)))["loss"] == pytest.approx(figures["loss"])
    (table := tmp_path / "two.csv").write_text('text\n"' + '"\n"'.join(["not to be zzz日!\n" * 10] * 2) + '"')
    for reading.task.documents, reading.task.isolate, same in (("whole", False, True), ("line", True, False)):
        assert (evaluation_report(on_file(reading, str(table)))["loss"] == pytest.approx(figures["loss"])) == same
    model = ModelConfig(architecture="encoder_only", **TINY)
    masked = untrained(Config(data={**reading.config.data, "name": "masked_text"}, model=model))
    assert evaluation_report(on_file(masked, str(other)))["unknown_tokens"] == 5 / 16, "and never masked"
    other.write_text("日" * 20)
    with pytest.raises(ConfigError, match=r"2 examples of .*other.txt: there is no token to predict, as in a text of"):
        evaluation_report(on_file(masked, str(other)))


def test_bits_are_of_the_text_of_unknown_words_in_some_blocks_or_all(tmp_path: Path) -> None:
    rows = [f"ä{n} naïve {'to be, ' * (n % 5)}or 日本" for n in range(60)]
    (path := tmp_path / "own.txt").write_text("\n".join(rows))
    data = {"name": "text", "path": str(path), "documents": "line", "block": 4, "test_share": 0.3}
    data["tokenizer"] = {"name": "word", "size": 10}
    reading = untrained(Config(data=data, model=ModelConfig(architecture="decoder_only", **TINY)))
    words = [word for row in rows for word in ("", *re.findall(r"\s|\w+|[^\w\s]+", row))][1:]  # "" is <eos>
    start, end = len(reading.task._parts["training"]), int(0.9 * len(words))
    for part, reading.task.test_size, options in (
        (words[start:end], 7, {"split": "test"}), (words[end:], 7, {"split": "validation"}),
        (words, 999, {"stride": 2}),
    ):  # fmt: skip
        starts = np.arange(0, len(part) - 1, 4)
        chosen = starts[np.linspace(0, len(starts) - 1, min(reading.task.test_size, len(starts))).astype(int)]
        predicted = [word for start in chosen for word in part[start + 1 : start + 5]]
        predictor = on_file(reading, str(path)) if part is words else reading
        figures, text = evaluation_report(predictor, **options), "".join(predicted)
        unknown = sum(word not in ("", *reading.tokenizer.alphabet) for word in predicted) / len(predicted)
        bits = figures["bits_per_token"] * len(predicted)
        sizes = [bits / figures["bits_per_character"], bits / figures["bits_per_byte"]]
        assert [*sizes, figures["unknown_tokens"]] == pytest.approx([len(text), len(text.encode()), unknown])
        assert f"unknown tokens (the share of <unk>) {100 * unknown:.2f} %" in " ".join(table(figures).split())
    special = reading.tokenizer.special
    reading.task.vocabulary = Mock(special=special._replace(unk=special.eos))
    assert reading.task.unknown_extent("test") is None, "as of GPT-2, where <unk> is also <eos>"


def test_overlapping_windows_read_the_whole_text_beyond_test_size(reading: Predictor) -> None:
    whole, reading.task.test_size = evaluation_report(reading, stride=8), 1
    assert evaluation_report(reading, stride=8) == whole


def test_what_does_not_apply_is_refused(reading: Predictor) -> None:
    beams = GenerationOptions(num_beams=2)
    splits, lengths = ("training", "tset", ""), ("3", "3:", "5:3", "0:3", "a:b", "1:2:3", "1:²", f"1:{10**8}")
    for predictor, options, sentence in (
        *((answering(), {"split": each}, f"--split must be test or validation, got {each}") for each in splits),
        *((answering(), {"lengths": each}, f"FROM:TO with 1 <= FROM <= TO < 10,000,000, got {each}")
          for each in lengths),
        (reading, {"lengths": "1:3"}, "--lengths is for tasks that sample questions of .* was trained on text"),
        *((reading, {"stride": each}, f"--stride must lie between 1 and data.block, which is 16; got {each}")
          for each in (0, -1, 17)),
        (answering(), {"stride": 2}, "--stride is for language models of text; .* was trained on reverse"),
        (answering(), {"options": beams}, "--num_beams is for answers that are scored as texts"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=sentence):
            evaluation_report(predictor, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"--path is for .* text, masked_text and translation; .* on reverse"):
        on_file(answering(), "x.txt")


def test_a_table_has_each_figure_with_its_meaning_and_a_line_for_each_length() -> None:
    by_length = {3: {"examples": 10, **FIGURES}, 40: {"examples": 500, **FIGURES, "exact_match": 1.0}}
    report = {"split": "test", "examples": 12345, **FIGURES, "lengths": [3, 40], "by_length": by_length}
    lines = table(report).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "12,345 examples held out for test", "exact match (free-running, <eos> included) 12.50 %",
        "token accuracy (teacher-forced) 50.00 %", "loss (nats per token, teacher-forced) 1.2346", "",
        "length examples exact_match token_accuracy loss", "3 10 12.50 % 50.00 % 1.2346",
        "40 500 100.00 % 50.00 % 1.2346",
    ]  # fmt: skip
    assert len({len(line) for line in lines[5:]}) == 1, "columns are aligned"
    last = table({"split": "test", "examples": 3, **FIGURES, "by_length": {}}).splitlines()[-1]
    assert "no held-out questions of these lengths" in last
    text = table({"split": "validation", "examples": 3, "loss": 2.0, "bits_per_character": 2.8854, "stride": 4})
    assert [line.split()[-1] for line in text.splitlines()[1:]] == ["2.0000", "2.8854", "4"]
    assert len({line.rindex(" ") for line in text.splitlines()[1:]}) == 1, "figures are aligned"
    assert "exact" not in text
