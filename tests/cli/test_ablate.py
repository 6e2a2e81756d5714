"""minitx ablate: table, heat map, JSON, and one sentence for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from minitx.cli.main import main
from predictors import trained


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ablate") / "model.ckpt"
    torch.save(trained("encoder_decoder"), path)
    return path


def test_table_heat_map_and_json(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figures = tmp_path / "heads.png", tmp_path / "heads.json"
    together = ["--heads", "cross.1.1,encoder.2.2"]
    main(["ablate", str(checkpoint), "--examples", "12", "--out", str(out), "--json", str(figures), *together])
    printed = capsys.readouterr().out
    assert "12 examples held out for test" in printed
    assert "exact match" in printed
    assert str(out) in printed
    report = json.loads(figures.read_text())
    assert (report["split"], report["examples"], len(report["heads"])) == ("test", 12, 3 * 2 * 2)
    assert report["groups"][-1]["heads"] == ["cross.1.1", "encoder.2.2"]
    for row in report["heads"]:
        (line,) = [
            line for line in printed.splitlines() if line.split()[0] == row["heads"][0] and "cross.1.1 e" not in line
        ]
        assert f"{row['loss']:.4f}" in line
    with Image.open(out) as opened:
        assert opened.format == "PNG"


def test_the_validation_split(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["ablate", str(checkpoint), "--examples", "5", "--split", "validation"])
    assert "5 examples held out for validation" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--out", "heads.jpg"], "--out must end in .png, got heads.jpg"),
        (["--out", "/nowhere/heads.png"], "/nowhere/heads.png cannot be written"),
        (["--json", "/nowhere/heads.json"], "/nowhere/heads.json cannot be written"),
        (["--heads", "cross"], "--heads must be KIND.LAYER.HEAD"),
        (["--heads", "cross.9.1"], "there is no head cross.9.1 in this model, which has encoder.1.1 to encoder.2.2"),
        (["--heads", "cross.0.1"], "there is no head cross.0.1"),
        (["--examples", "0"], "--examples must be at least 1, got 0"),
        (["--split", "training"], "--split must be test or validation, got training"),
        (["--example", "3"], "example"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], expected: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["ablate", str(checkpoint), *words])
    captured = capsys.readouterr()
    assert stopped.value.code == 2
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("minitx: ")
    assert expected in captured.err
