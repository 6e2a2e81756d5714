"""Masked language modelling, from a config to a checkpoint that is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minitx
from minitx.cli.main import main
from minitx.config.schema import Config, config_from_dict
from minitx.data.tasks import MaskedText
from minitx.training.api import train_config as train
from minitx.training.resolve import resolve
from tests.training.interrupting import events


@pytest.fixture
def masked(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """A Config of masked language modelling on a small file, with whatever sections are given on top."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("the cat sat on the mat.\n" * 100)

    def make(**sections: dict[str, Any]) -> Config:
        plain = small().to_dict()
        plain["data"] = {
            "name": "masked_text", "path": str(tmp_path / "text.txt"),
            "block": 24, "validation_size": 20, "batch_size": 8,
        }  # fmt: skip
        plain["model"]["architecture"] = "encoder_only"
        plain["trainer"] |= {"max_steps": 2, "val_every_n_steps": 2}
        for section, values in sections.items():
            plain[section] |= values
        return config_from_dict(plain)

    return make


def test_a_run_with_its_table_and_its_report(masked: Callable, tmp_path: Path, capsys: Any) -> None:
    results = train(masked(log={"attention": {"every_n_validations": 1}}))
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


def test_it_learns(masked: Callable, tmp_path: Path) -> None:
    """Long runs of one letter: a masked letter equals its neighbours."""
    (tmp_path / "text.txt").write_text("".join(letter * 40 for letter in "abcdefgh") * 10)
    sections = {"trainer": {"max_steps": 60, "val_every_n_steps": 60}, "optimizer": {"lr": 1e-2}}
    results = train(masked(data={"batch_size": 32}, **sections))
    assert results["token_accuracy"] > 0.8
    predictor = minitx.load(tmp_path / "runs/small", device="cpu")
    assert predictor.generate(["cc<mask>ccc<mask>", "<mask>ffffff"]) == ["ccccccc", "fffffff"]


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_other_architectures_are_refused(masked: Callable, architecture: str) -> None:
    with pytest.raises(ValueError, match=r"model\.architecture: .*encoder_only"):
        resolve(masked(model={"architecture": architecture}))


def test_running_text_has_no_prefix(masked: Callable) -> None:
    plain = masked().to_dict()
    plain["data"]["name"] = "text"
    plain["model"] |= {"architecture": "decoder_only", "prefix_lm": True}
    with pytest.raises(ValueError, match=r"model\.prefix_lm needs questions and answers"):
        resolve(config_from_dict(plain))
