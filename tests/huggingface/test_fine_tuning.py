"""Imported models of every family are fine-tuned with --init_from."""

from collections.abc import Callable
from pathlib import Path

import pytest

import minitx
from huggingface.hf_models import CASES, TEXT, save
from minitx.cli.main import main
from parallel_files import write_split
from short_configs import short

SHORT = [*short(2), "--init_from", "ours.ckpt", "--run.name", "tuned"]
DATA = {
    "decoder_only": ["--data.name", "text", "--data.block", "16", "--data.path", "text.txt"],
    "encoder_only": ["--data.name", "masked_text", "--data.block", "16", "--data.path", "text.txt"],
    "encoder_decoder": [
        "--data.name", "translation", "--data.path", "pairs", "--data.test", "val", "--data.max_tokens", "60",
    ],
}  # fmt: skip


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a text and with pairs of sentences."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(TEXT * 12))
    Path("pairs").mkdir()
    for split in ("train", "val"):
        write_split(Path("pairs"), split, [(f"{text} {split}", f"{text} {split}, in English") for text in TEXT])
    return tmp_path


EVERYDAY_CASES = ("llama-3", "bert", "t5-1.1", "bart-forced")
"""Those of the fast suite: every architecture, and a family with scaled tables."""


@pytest.mark.parametrize("name", [n if n in EVERYDAY_CASES else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_every_family_is_fine_tuned(name: str, away: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(name, away / "hf")
    main(["import", "hf", "--out", "ours.ckpt"])
    ours = minitx.load("ours.ckpt", device="cpu")
    main(["train", *DATA[ours.architecture], *SHORT])
    tuned = minitx.load("runs/tuned/v0/last.ckpt", device="cpu")
    assert tuned.tokenizer.to_dict() == ours.tokenizer.to_dict()
    pairs = zip(tuned.model.state_dict().values(), ours.model.state_dict().values(), strict=True)
    assert 0.0 < max(float((after - before).abs().max()) for after, before in pairs) < 0.1
    options = {} if ours.architecture == "encoder_only" else {"max_new_tokens": 5}
    assert isinstance(minitx.load("runs/tuned", device="cpu").generate("or <mask> to be", **options), str)
    assert "nan" not in capsys.readouterr().out


def test_pairs_for_a_decoder_need_a_separator(away: Path, refused: Callable) -> None:
    save("gpt2", away / "hf")
    main(["import", "hf", "--out", "ours.ckpt"])
    for file in Path("pairs").iterdir():
        file.write_text(f"{file.stem}\n" * 9)
    assert "<sep>" in refused("train", *DATA["encoder_decoder"], *SHORT, "--data.max_tokens", "20")
