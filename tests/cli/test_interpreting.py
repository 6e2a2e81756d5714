"""minitx ablate, lens and patch: what they print, and the files that they write."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from minitx.cli.main import main


def test_ablate_writes_heat_map_and_json(answers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figures = tmp_path / "heads.png", tmp_path / "heads.json"
    together = ["--together", "cross.1.1,encoder.2.2", "--split", "validation"]
    main(["ablate", answers, "--examples", "12", "--out", str(out), "--json", str(figures), *together])
    printed = capsys.readouterr().out
    assert all(part in printed for part in ("12 examples held out for validation", "exact match", str(out)))
    report = json.loads(figures.read_text())
    assert (report["split"], report["examples"], len(report["parts"])) == ("validation", 12, 3 * 2 * 2)
    assert report["groups"][-1]["parts"] == ["cross.1.1", "encoder.2.2"]
    assert Image.open(out).format == "PNG"


@pytest.mark.parametrize(
    ("words", "expected", "name"),
    [
        ("lens MODEL '3 1 4'", "2 decoder layers and 2 encoder layers", "found.html"),
        ("lens MODEL '3 1 4'", "2 decoder layers and 2 encoder layers", "found.svg"),
        ("patch MODEL '3 1 4' '3 1 5' --sites heads --answers '4 1' '5 1'", "cross, head 2.1, at <bos>", "found.svg"),
        ("patch MODEL '3 1 4' '3 1 5' --sender decoder.1.1 --answers 4 5", "head 2.2, at queries", "found.html"),
    ],
)
def test_lens_and_patch_write_pages_and_images(
    words: str, expected: str, name: str, answers: str, tmp_path: Path, capsys: Any
) -> None:
    out, figures = tmp_path / name, tmp_path / "found.json"
    words = words.replace("MODEL", shlex.quote(answers))
    main([*shlex.split(words), "--device", "cpu", "--out", str(out), "--json", str(figures)])
    printed = capsys.readouterr().out
    assert str(out) in printed
    assert expected in printed
    assert {"title"} <= json.loads(figures.read_text()).keys()
    assert ("<svg" if name.endswith("svg") else "Content-Security-Policy") in out.read_text()
