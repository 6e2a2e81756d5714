"""Masked language modelling, from a config to a checkpoint that is used."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minitx
from minitx.cli.main import main
from minitx.config.schema import Config
from minitx.data.tasks import MaskedText
from minitx.training.api import train_config as train
from minitx.training.resolve import resolve
from tests.training.interrupting import events


@pytest.fixture
def masked(small: Any, cat: Path) -> Callable[..., Config]:
    """masked(section={key: value}, ...): a config of masked language modelling."""
    data = {"name": "masked_text", "path": str(cat)}
    return lambda model=None, **sections: small(
        data=data, model={"architecture": "encoder_only", **(model or {})}, **sections
    )


def test_a_run_with_its_table_and_its_report(masked: Callable, tmp_path: Path, capsys: Any) -> None:
    results = train(masked(log={"attention": {"pictures": True}}, trainer={"max_steps": 2}))
    assert results["split"] == "validation"
    assert results["bits_per_token"] == pytest.approx(results["loss"] / math.log(2))
    assert 0.0 <= results["token_accuracy"] <= 1.0
    assert "exact_match" not in results
    log = events(tmp_path / "runs/small/v0")
    assert log.Tags()["images"]
    table = log.Tensors("answers/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert all(word in table for word in ("input", "expected", "generated", "the cat", "mask"))
    predictor = minitx.load(tmp_path / "runs/small", device="cpu")
    assert isinstance(predictor.task, MaskedText)
    filled = predictor.generate("the c<mask>t sat")
    assert filled.startswith("the c")
    assert filled.endswith("t sat")
    capsys.readouterr()
    main(["evaluate", str(tmp_path / "runs/small")])
    out = capsys.readouterr().out
    assert "held out for validation" in out
    assert "token accuracy (teacher-forced)" in out
    assert f"{results['loss']:.4f}" in out  # the same tokens are masked each time
    assert "exact match" not in out


def test_it_learns(masked: Callable, cat: Path, tmp_path: Path) -> None:
    """Long runs of one letter: a masked letter equals its neighbours."""
    cat.write_text("".join(letter * 40 for letter in "abcdefgh") * 10)
    sections = {"trainer": {"max_steps": 120, "val_every_n_steps": 120}, "optimizer": {"lr": 1e-2}}
    results = train(masked(**sections))
    assert results["token_accuracy"] > 0.8
    predictor = minitx.load(tmp_path / "runs/small", device="cpu")
    assert predictor.generate(["cc<mask>ccc<mask>", "<mask>ffffff"]) == ["ccccccc", "fffffff"]


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_other_architectures_are_refused(masked: Callable, architecture: str) -> None:
    with pytest.raises(ValueError, match=r"model\.architecture: .*encoder_only"):
        resolve(masked(model={"architecture": architecture}))


def test_running_text_has_no_prefix(small: Any, cat: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.prefix_lm needs questions and answers"):
        resolve(small(data={"path": str(cat)}, model={"prefix_lm": True}))
