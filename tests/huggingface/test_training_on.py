"""Imported models are trained on with --init_from, looked into on the way, and go out again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import minitx
from huggingface.theirs import CASES, TEXT, saved
from minitx.cli.main import main

SHORT = [
    "--trainer.max_steps", "2", "--trainer.val_every_n_steps", "1", "--trainer.precision", "32-true",
    "--trainer.accelerator", "cpu", "--data.batch_size", "4", "--data.validation_size", "4", "--data.test_size", "4",
]  # fmt: skip
DATA = {
    "decoder_only": ["--data.name", "text", "--data.block", "16", "--data.path", "text.txt"],
    "encoder_only": ["--data.name", "masked_text", "--data.block", "16", "--data.path", "text.txt"],
    "encoder_decoder": [
        "--data.name",
        "translation",
        "--data.path",
        "pairs",
        "--data.test",
        "val",
        "--data.max_tokens",
        "60",
    ],
}


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a text and with pairs of sentences."""
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(TEXT * 12))
    Path("pairs").mkdir()
    for split, ending in (("train", "one"), ("val", "two")):
        Path(f"pairs/{split}.de").write_text("\n".join(f"{text} {ending}" for text in TEXT))
        Path(f"pairs/{split}.en").write_text("\n".join(f"{text} {ending}, in English" for text in TEXT))
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_every_family_is_trained_on(name: str, away: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = saved(name, away / "theirs")
    main(["import", "theirs", "--out", "ours.ckpt"])
    ours = minitx.load("ours.ckpt", device="cpu")
    main(["train", "--init_from", "ours.ckpt", "--run.name", "tuned", *DATA[ours.architecture], *SHORT])
    tuned = minitx.load("runs/tuned/v0/last.ckpt", device="cpu")
    assert tuned.tokenizer.to_dict() == ours.tokenizer.to_dict()
    moved = [
        float((weight - before).abs().max())
        for weight, before in zip(tuned.model.state_dict().values(), ours.model.state_dict().values(), strict=True)
    ]
    assert 0.0 < max(moved) < 0.1
    prompt, limit = (
        ("or <mask> to be", {}) if ours.architecture == "encoder_only" else ("or not", {"max_new_tokens": 5})
    )
    assert isinstance(minitx.load("runs/tuned", device="cpu").generate(prompt, **limit), str)
    main(["export", "runs/tuned/v0/last.ckpt", "back"])
    again = type(theirs.model).from_pretrained("back").eval()
    read = theirs.tokenizer(TEXT[2], return_tensors="pt")["input_ids"]
    inputs = {"input_ids": read}
    source: tuple[torch.Tensor, ...] = (read,)
    if ours.architecture == "encoder_decoder":
        inputs["decoder_input_ids"] = torch.arange(9)[None] * 5
        source = (read, inputs["decoder_input_ids"])
    with torch.no_grad():
        expected, found = again(**inputs), tuned.model(*source)
    expected = expected.prediction_logits if "prediction_logits" in expected else expected.logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert "nan" not in capsys.readouterr().out


def test_questions_need_a_token_between_them_and_their_answers(away: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("gpt2", away / "theirs")
    main(["import", "theirs", "--out", "ours.ckpt"])
    for split in ("train", "val"):
        for language in ("de", "en"):
            Path(f"pairs/{split}.{language}").write_text(f"{split}\n" * 9)
    with pytest.raises(SystemExit) as stopped:
        main(
            [
                "train",
                "--init_from",
                "ours.ckpt",
                "--run.name",
                "tuned",
                *DATA["encoder_decoder"],
                *SHORT,
                "--data.max_tokens",
                "20",
            ]
        )
    assert stopped.value.code == 2
    assert "<sep>" in capsys.readouterr().err
