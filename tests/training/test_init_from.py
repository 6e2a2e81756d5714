"""A new run from the weights of another: what fits, what is taken from it, what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import minitx
from minitx.checkpoints import format as checkpoint
from minitx.config import yaml_files
from minitx.config.errors import ConfigError
from minitx.data.tokenizers import SpecialTokens
from minitx.training.api import _unknown_share
from minitx.training.api import train_config as train
from minitx.training.resolve import resolve
from tests.training.conftest import small_values
from tests.training.interrupting import assert_equal, break_off, state, weights


def tuned(small: Any, path: Path, **sections: dict[str, Any]) -> Any:
    """A run of two steps that starts from the weights at a path."""
    return small(**sections, run={"name": "1e-3", "init_from": str(path)}, trainer={"max_steps": 2})


@pytest.fixture
def pretrained(trained: Any) -> Path:
    return trained(run={"seed": 5})


def test_a_new_run_starts_from_the_weights_alone(small: Any, tmp_path: Path, pretrained: Path, finished: Any) -> None:
    """Of a file, or of the best one in a folder."""
    file, before, copied = pretrained / "last.ckpt", weights(pretrained), finished(run={"seed": 5})
    best = state(copied, "best")
    best["state_dict"]["model.embedding.table.weight"] += 1.0
    torch.save(best, copied / "best.ckpt")
    assert_equal(resolve(tuned(small, copied)).model.state_dict(), weights(copied, "best"))
    results, folder = train(tuned(small, file, data={"name": "copy"})), tmp_path / "runs/1e-3/v0"
    run = yaml_files.read(str(folder / "config.yaml"))["run"]
    assert (run["name"], run["init_from"], results["init_from"], results["steps"]) == ("1e-3", str(file), str(file), 2)
    moved = [(before[name] - weight).abs().max() for name, weight in weights(folder).items()]
    assert 0 < max(moved) < 0.02, "two steps away from there"


@pytest.mark.parametrize(("model", "message"), [
    ({"d_model": 16}, r"model\.d_model is 32 in the checkpoint and 16 here"),
    ({"position": {"name": "rope"}}, r"model\.position\.name is 'sinusoidal' in the checkpoint and 'rope' here"),
    ({"window": 3, "window_position": "t5"}, r"model\.window_position\.name is null in .* and 't5' here"),
])  # fmt: skip
def test_a_model_that_does_not_fit_is_refused_by_key(
    small: Any, tmp_path: Path, pretrained: Path, model: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"--init_from: {message}; leave the key out"):
        train(tuned(small, pretrained, model=model))
    assert not (tmp_path / "runs/1e-3").exists()


def test_keys_of_no_weight_and_symbols_may_differ_and_are_printed(small: Any, pretrained: Path, capsys: Any) -> None:
    model = {"dropout": 0.1, "window": 3, "position": {"name": "sinusoidal", "base": 500.0}}
    train(tuned(small, pretrained, model=model, data={"symbols": 4}))
    out = capsys.readouterr().out
    assert "this task has its own tokens" in out
    assert f"--init_from: the weights of {pretrained} (small)" in out
    for change in ("dropout 0.0 -> 0.1", "window null -> 3", "position.base 10000.0 -> 500.0"):
        assert f"model.{change}" in out
    with pytest.raises(ValueError, match=r"model\.vocab_size must be at least .* 15, got 12; with --init_from it"):
        train(tuned(small, pretrained, data={"symbols": 9}))


def test_data_that_the_model_of_the_checkpoint_cannot_take_are_refused_as_such(small: Any, trained: Any) -> None:
    """Its architecture and its table of positions are fixed: advice to set these keys would lead back to a refusal."""
    learned = trained(model={"position": {"name": "learned", "max_len": 8}, "architecture": "encoder_only"})
    longer = {"name": "reverse", "symbols": 6, "length": [1, 9]}
    for key, data in {"position.max_len": longer, "architecture": {"name": "markov"}}.items():
        with pytest.raises(ConfigError, match=rf"^model\.{key}.*; with --init_from it is the checkpoint's: choose"):
            resolve({"data": data}, init_from=str(learned))


def test_a_window_and_a_prefix_are_checked_with_the_architecture_of_the_checkpoint(small: Any, trained: Any) -> None:
    decoder = trained(model={"architecture": "decoder_only"})
    for change in ({"window": 4}, {"prefix_lm": True}):
        resolve({"data": small().data, "model": change}, init_from=str(decoder))


def test_coupled_ids_restart_at_tokens_of_the_new_task(tmp_path: Path) -> None:
    model = {"architecture": "decoder_only", "position_ids": "coupled", "d_model": 16, "n_heads": 2}
    one = resolve({"data": {"name": "addition"}, "model": model})
    parts = one.config.to_dict(), one.task.vocabulary.to_dict(), one.model.state_dict()
    checkpoint.write(checkpoint.contents_of(*parts), tmp_path / "addition.ckpt")
    two = resolve({"data": {"name": "reverse", "symbols": 5}}, init_from=str(tmp_path / "addition.ckpt"))
    special, after = two.task.vocabulary.special, two.config.model.position_ids["after"]
    assert after == [special.bos, special.sep] != one.config.model.position_ids["after"]


def test_changes_are_values_by_key_and_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    for changes in (5, [1], {5: 1}):
        with pytest.raises(ConfigError, match="changes: expected values by key, such as"):
            minitx.train("reverse", changes)
    for path, shown, config in (("", "''", "reverse"), ("a", "a", minitx.Config(data={"name": "copy"}))):
        with pytest.raises(ConfigError, match=f"--init_from: there is no checkpoint and no run folder at {shown}$"):
            minitx.train(config, {"run.folder": str(tmp_path)}, init_from=path)


def test_text_takes_model_and_tokenizer_of_the_checkpoint(small: Any, cat: Path, tmp_path: Path, capsys: Any) -> None:
    """Its run is resumed without the checkpoint and without the keys that came from it."""
    one, dog, rope = tmp_path / "runs/one", tmp_path / "dog.txt", {"name": "rope", "base": 500.0}
    dog.write_text("a dog sat on the sofa, too!\n" * 200)

    def on_text(name: str, init_from: Path | None = None, model: Any = None) -> dict[str, Any]:
        run = {"name": name, "init_from": init_from and str(init_from)}
        values = small_values(tmp_path, run=run, data={"path": str(dog)}, trainer={"max_steps": 4})
        return {**values, "model": model or {}}

    words = {"path": str(cat), "tokenizer": {"name": "word", "size": 300}}
    train(small(run={"name": "one"}, data=words, model={"position": rope}))
    other = small(run={"name": "one"}, data={**words, "tokenizer": {"name": "word"}}, model={"position": rope})
    with pytest.raises(ConfigError, match=r"trained with data\.tokenizer\.size 300, not"):
        train(other, resume=True)
    with pytest.raises(ConfigError, match="--init_from starts a new run and --resume continues an old one"):
        train(on_text("two"), resume=True, init_from=str(one))
    train(on_text("two", one, model={"dropout": 0.1}))
    assert "% of the tokens in the first batch are <" in capsys.readouterr().out.partition("and the tokenizer of")[2]
    vocabulary = (run := resolve(on_text("three", one))).task.vocabulary
    vocabulary.special_tokens = SpecialTokens(vocabulary.special._replace(eos=vocabulary.special.unk))
    assert _unknown_share(run) == 0, "as of GPT-2, where <unk> is also <eos>"
    first, second = (minitx.load(tmp_path / "runs" / name, device="cpu") for name in ("one", "two"))
    assert second.tokenizer.to_dict() == first.tokenizer.to_dict()
    model, data = second.config.model, second.config.data
    assert (model.d_model, model.n_heads, model.dropout) == (32, 2, 0.1)
    assert rope.items() <= model.position.items()
    assert (data["tokenizer"]["name"], data["path"]) == ("word", str(tmp_path / "dog.txt"))

    break_off(on_text("broken", one, model={"dropout": 0.1}), 3)
    one.rename(tmp_path / "away")
    train(on_text("broken"), resume=True)
    straight, broken = (state(tmp_path / f"runs/{name}/v0") for name in ("two", "broken"))
    assert broken["minitx"]["config"]["run"]["init_from"] == str(one)
    assert_equal(straight["state_dict"], broken["state_dict"])
