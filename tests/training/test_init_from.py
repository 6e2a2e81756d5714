"""A new run from the weights of another: what fits, what is taken from it, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import minitx
from minitx.cli.main import main
from minitx.config.schema import config_from_dict
from minitx.training.api import train_config as train
from minitx.training.resolve import resolve
from tests.training.interrupting import break_off, state


def tuned(small: Any, path: Path, **sections: dict[str, Any]) -> Any:
    """A run of two steps that starts from the weights at a path."""
    run = {"name": "tuned", "init_from": str(path)}
    return small(**sections, run=run, trainer={"max_steps": 2})


@pytest.fixture
def pretrained(trained: Any) -> Path:
    return trained(run={"seed": 5})


@pytest.mark.parametrize("file", ["", "last.ckpt"])
def test_a_new_run_starts_from_the_weights_alone(small: Any, tmp_path: Path, pretrained: Path, file: str) -> None:
    config = tuned(small, pretrained / file, data={"name": "copy"})
    weights = state(pretrained, "last" if file else "best")["state_dict"]
    for key, weight in resolve(config)[2].state_dict().items():
        assert torch.equal(weight, weights[f"model.{key}"]), key
    results = train(config)
    assert (results["steps"], results["init_from"]) == (2, str(pretrained / file))
    folder = tmp_path / "runs/tuned/v0"
    assert yaml.safe_load((folder / "config.yaml").read_text())["run"]["init_from"] == str(pretrained / file)
    assert json.loads((folder / "results.json").read_text())["init_from"] == str(pretrained / file)
    moved = [
        (weights[f"model.{key}"] - weight).abs().max()
        for key, weight in minitx.load(folder / "last.ckpt", device="cpu").model.state_dict().items()
    ]
    assert 0 < max(moved) < 0.02, "two steps away from there"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"d_model": 16}, r"model\.d_model is 32 in the checkpoint and 16 here"),
        ({"n_heads": 4}, r"model\.n_heads is 2 in the checkpoint and 4 here"),
        (
            {"architecture": "decoder_only"},
            r"model\.architecture is 'encoder_decoder' in the .* and 'decoder_only' here",
        ),
        ({"position": {"name": "rope"}}, r"model\.position\.name is 'sinusoidal' in the checkpoint and 'rope' here"),
        ({"norm_first": False}, r"model\.norm_first is True in the checkpoint and False here"),
        ({"vocab_size": 20}, r"model\.vocab_size is 12 in the checkpoint and 20 here"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_by_key(
    small: Any, tmp_path: Path, pretrained: Path, model: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"--init_from: {message}; leave the key out"):
        train(tuned(small, pretrained, model=model))
    assert not (tmp_path / "runs/tuned").exists()


def test_keys_that_shape_no_weight_may_differ_and_are_printed(small: Any, pretrained: Path, capsys: Any) -> None:
    model = {"dropout": 0.1, "window": 3, "position": {"name": "sinusoidal", "base": 500.0}}
    train(tuned(small, pretrained, model=model))
    out = capsys.readouterr().out
    assert f"--init_from: the weights of {pretrained} (small)" in out
    assert "model.dropout 0.0 -> 0.1" in out
    assert "model.window None -> 3" in out
    assert "model.position.base 10000.0 -> 500.0" in out


def test_other_symbols_must_fit_and_are_reported(small: Any, pretrained: Path, capsys: Any) -> None:
    train(tuned(small, pretrained, data={"symbols": 4}))
    assert "this task has its own tokens" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"model\.vocab_size must be at least the tokenizer's 15, got 12"):
        train(tuned(small, pretrained, data={"symbols": 9}))


def test_a_missing_and_a_foreign_file_are_refused(small: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--init_from: there is no checkpoint and no run folder at .*nowhere"):
        train(tuned(small, tmp_path / "nowhere"))
    (tmp_path / "foreign.ckpt").write_bytes(b"foreign")
    with pytest.raises(ValueError, match=r"--init_from: .*foreign\.ckpt is damaged, or not a minitx checkpoint"):
        train(tuned(small, tmp_path / "foreign.ckpt"))


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text("the cat sat on the mat.\n" * 200)
    other.write_text("a dog sat on the sofa, too!\n" * 200)
    return one, other


def words(folder: Path, name: str, text: Path, *more: str) -> list[str]:
    """A command line for running text, without a key of the model."""
    keys = {
        "run.folder": folder / "runs", "run.name": name, "data.name": "text", "data.path": text, "data.block": 16,
        "data.batch_size": 8, "data.validation_size": 8, "trainer.max_steps": 4, "trainer.save_every_n_steps": 2,
        "trainer.accelerator": "cpu", "trainer.precision": "32-true", "log.attention.every_n_validations": 0,
    }  # fmt: skip
    return ["train", *[word for key, value in keys.items() for word in (f"--{key}", str(value))], *more]


SMALL = ["--model.architecture=decoder_only", "--model.d_model=32", "--model.n_heads=2", "--model.n_layers=1"]
BPE = ["--data.tokenizer.name", "bpe", "--data.tokenizer.size", "300"]


def test_text_takes_model_and_tokenizer_of_the_checkpoint(
    tmp_path: Path, texts: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = texts
    main(words(tmp_path, "one", one, *SMALL, *BPE, "--model.position", "{name: rope, base: 500.0}"))
    tune = words(tmp_path, "two", other, "--init_from", str(tmp_path / "runs/one"))
    main([*tune, "--model.dropout", "0.1"])
    first, second = (minitx.load(tmp_path / "runs" / name, device="cpu") for name in ("one", "two"))
    assert second.tokenizer.to_dict() == first.tokenizer.to_dict()
    assert (second.config.model.d_model, second.config.model.n_heads, second.config.model.dropout) == (32, 2, 0.1)
    assert (second.config.model.position["name"], second.config.model.position["base"]) == ("rope", 500.0)
    assert second.config.data["tokenizer"]["name"] == "bpe"
    assert second.config.data["path"] == str(other)
    assert "model.dropout 0.0 -> 0.1" in capsys.readouterr().out
    for options, message in (
        (["--model.d_model", "64"], "--init_from: model.d_model is 32 in the checkpoint and 64 here"),
        (["--resume"], "--init_from starts a new run and --resume continues an old one"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main([*tune, *options])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err


def test_such_a_run_is_resumed_without_the_checkpoint(tmp_path: Path, texts: tuple[Path, Path], capsys: Any) -> None:
    """Nor are the keys needed that came from it."""
    one, other = texts
    main(words(tmp_path, "one", one, *SMALL, *BPE))
    main(words(tmp_path, "straight", other, "--init_from", str(tmp_path / "runs/one")))
    plain = state(tmp_path / "runs/straight/v0")["minitx"]["config"]
    break_off(config_from_dict({**plain, "run": {**plain["run"], "name": "broken"}}), 3)
    (tmp_path / "runs/one").rename(tmp_path / "away")
    main([*words(tmp_path, "broken", other), "--resume"])
    assert "--resume: continues after step 2" in capsys.readouterr().out
    straight, broken = (state(tmp_path / f"runs/{name}/v0") for name in ("straight", "broken"))
    assert straight["minitx"]["tokenizer"] == broken["minitx"]["tokenizer"]
    assert broken["minitx"]["config"]["run"]["init_from"] == str(tmp_path / "runs/one")
    assert all(torch.equal(weight, broken["state_dict"][key]) for key, weight in straight["state_dict"].items())


def test_characters_that_the_tokenizer_does_not_know_are_counted(
    tmp_path: Path, texts: tuple[Path, Path], capsys: Any
) -> None:
    one, other = texts
    main(words(tmp_path, "one", one, *SMALL))
    main(words(tmp_path, "two", other, "--init_from", str(tmp_path / "runs/one")))
    assert "% of its training tokens are <unk>" in capsys.readouterr().out
