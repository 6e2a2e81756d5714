"""A run that was killed and resumed is the run that was not: weights, curves, choice; and what may not change."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import minitx
from minitx.checkpoints import format as checkpoint
from minitx.config.schema import config_from_dict
from minitx.training.api import train_config as train
from minitx.training.folder import new_folder
from minitx.training.module import TransformerModule
from tests.training.interrupting import assert_same_run, break_off, scalars, state
from tests.training.test_run import interrupt_at

DROPS = {"dropout": 0.1, "attention_dropout": 0.1}
STEPS = {"max_steps": 7, "val_every_n_steps": 2, "save_every_n_steps": 2}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "encoder alone": {"data": {"length": [4, 4]}, "model": {"architecture": "encoder_only", **DROPS}},
    "decoder alone": {"model": {"architecture": "decoder_only", **DROPS}},
    "all at once": {
        "model": DROPS,
        "trainer": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1, "label_smoothing": 0.1},
        "optimizer": {"schedule": {"name": "cosine", "warmup_steps": 3}},
    },
    "linear": {"optimizer": {"schedule": {"name": "linear", "warmup_steps": 2}}},
    "noam": {"optimizer": {"schedule": {"name": "noam", "warmup_steps": 4}}},
    "muon": {"model": DROPS, "optimizer": {"name": "muon"}},
    "randomized positions": {"model": {"position_ids": {"name": "randomized", "range": 64, "longest": 16}}},
    "offset positions": {"model": {"position_ids": {"name": "offset", "largest": 20}}},
    "bf16-mixed": {"model": DROPS, "trainer": {"precision": "bf16-mixed"}},
    "bf16-true": {"model": DROPS, "trainer": {"precision": "bf16-true"}},
    "64-true": {"model": DROPS, "trainer": {"precision": "64-true"}},
    "64-true, muon, accumulated": {
        "optimizer": {"name": "muon"},
        "trainer": {"precision": "64-true", "accumulate_grad_batches": 3},
    },
}


def named(small: Any, name: str, **sections: dict[str, Any]) -> Any:
    """A run of this name, whose seven steps have four validations, and saves at steps 2, 4, 6 and at the end."""
    folder = small().run.folder
    return small(
        **{
            **sections,
            "run": {"name": name, "folder": folder},
            "trainer": {"precision": "32-true", **STEPS, **sections.get("trainer", {})},
            "log": {"every_n_steps": 1, "attention": {"every_n_validations": 2, "examples": 2}},
        }
    )


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed_is_never_interrupted(small: Any, tmp_path: Path, kind: str) -> None:
    train(named(small, "straight", **KINDS[kind]))
    config = named(small, "broken", **KINDS[kind])
    break_off(config, 5)
    assert state(tmp_path / "runs/broken/v0")["global_step"] == 4
    train(config, resume=True)
    assert_same_run(tmp_path / "runs/straight/v0", tmp_path / "runs/broken/v0")


def test_a_run_from_before_score_biases_were_left_alone(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its optimizer's groups had other sizes; without decay and clipping they make no difference to the weights."""
    sections = {
        "model": {"position": {"name": "t5"}},
        "optimizer": {"weight_decay": 0.0},
        "trainer": {"gradient_clip_val": 0.0},
    }
    train(named(small, "straight", **sections))
    config = named(small, "broken", **sections)
    with monkeypatch.context() as patch:
        patch.setattr("minitx.training.optim._score_biases", lambda model: set())
        break_off(config, 5)
    train(config, resume=True)
    straight, broken = (state(tmp_path / f"runs/{name}/v0")["state_dict"] for name in ("straight", "broken"))
    assert all(torch.equal(weight, straight[name]) for name, weight in broken.items())


@pytest.mark.parametrize("hook", ["training_step", "validation_step", "on_validation_epoch_end"])
@pytest.mark.parametrize("step", [2, 4, 6])
def test_whatever_it_was_doing(small: Any, tmp_path: Path, step: int, hook: str) -> None:
    """Killed in a validation, or right behind one: it is neither left out nor done twice."""
    train(named(small, "straight", model=DROPS))
    config = named(small, "broken", model=DROPS)
    if step == 2 and hook != "training_step":
        break_off(config, step, hook)
        with pytest.raises(ValueError, match=r"there is no .*last\.ckpt"):  # it was to be saved behind the validation
            train(config, resume=True)
        return
    break_off(config, step, hook)
    train(config, resume=True)
    assert_same_run(tmp_path / "runs/straight/v0", tmp_path / "runs/broken/v0")


def test_a_checkpoint_from_before_its_validation_has_it_when_it_goes_on(small: Any, tmp_path: Path) -> None:
    """As a signal that comes right then leaves it."""
    config = named(small, "broken")
    train(named(small, "straight"))

    def save(self: TransformerModule) -> None:
        if self.trainer.global_step == 4:
            self.trainer.save_checkpoint(tmp_path / "runs/broken/v0/last.ckpt")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformerModule, "on_validation_start", save)
        break_off(config, 4, "validation_step")
    assert state(tmp_path / "runs/broken/v0")["validated"] is False
    train(config, resume=True)
    assert_same_run(tmp_path / "runs/straight/v0", tmp_path / "runs/broken/v0")


def test_text(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat.\n" * 200)
    data = {"name": "text", "path": str(text), "block": 16, "batch_size": 8, "validation_size": 8}
    sections = {"model": {"architecture": "decoder_only", **DROPS}}

    def config(name: str) -> Any:
        plain = named(small, name, **sections).to_dict()
        return config_from_dict({**plain, "data": data})

    train(config("straight"))
    break_off(config("broken"), 5)
    train(config("broken"), resume=True)
    assert_same_run(tmp_path / "runs/straight/v0", tmp_path / "runs/broken/v0")
    text.write_text("the cat sat on a mat, too.\n" * 200)
    plain = config("broken").to_dict()
    plain["trainer"]["max_steps"] = 9
    with pytest.raises(ValueError, match=r"--resume: the data differs from the data .*broken.v0 was trained on"):
        train(config_from_dict(plain), resume=True)


def test_a_longer_plan_goes_on_behind_the_end(small: Any, tmp_path: Path, capsys: Any) -> None:
    constant = {"schedule": {"name": "constant", "warmup_steps": 0}}
    steps = {"save_every_n_steps": 3, "val_every_n_steps": 3}
    train(named(small, "straight", optimizer=constant, trainer={"max_steps": 9, **steps}))
    train(named(small, "longer", optimizer=constant, trainer={"max_steps": 3, **steps}))
    longer = named(small, "longer", optimizer=constant, trainer={"max_steps": 9, **steps})
    capsys.readouterr()
    train(longer, resume=True)
    out = capsys.readouterr().out
    assert "--resume: continues after step 3" in out
    assert "--resume: trainer.max_steps 3 -> 9\n" in out
    straight, found = (tmp_path / f"runs/{name}/v0" for name in ("straight", "longer"))
    assert_same_run(straight, found)
    assert train(longer, resume=True) == json.loads((found / "results.json").read_text())
    assert "longer/v0 has done its 9 steps already; a larger trainer.max_steps continues" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"already; .* continues with optimizer\.lr 0\.005 -> 0\.5"):
        train(named(small, "longer", optimizer={**constant, "lr": 0.5}, trainer={"max_steps": 9, **steps}), resume=True)
    with pytest.raises(ValueError, match=r"trainer\.max_steps must be larger than 9, .* got 4"):
        train(named(small, "longer", optimizer=constant, trainer={"max_steps": 4, **steps}), resume=True)


def test_finishing_is_caught_up_with(small: Any, tmp_path: Path) -> None:
    """Killed when all steps were done, before the figures were written."""
    config = named(small, "finished")
    results = train(config)
    folder = tmp_path / "runs/finished/v0"
    before = state(folder)["state_dict"]
    (folder / "results.json").unlink()
    again = train(config, resume=True)
    assert {key: again[key] for key in ("loss", "exact_match", "steps")} == {
        key: results[key] for key in ("loss", "exact_match", "steps")
    }
    assert all(torch.equal(weight, before[key]) for key, weight in state(folder)["state_dict"].items())


def test_other_settings_are_taken_and_told(small: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    constant = {"name": "constant", "warmup_steps": 0}
    break_off(named(small, "run", optimizer={"schedule": constant}), 3)
    optimizer = {"lr": 0.001, "weight_decay": 0.5, "betas": [0.8, 0.9], "schedule": constant}
    train(named(small, "run", optimizer=optimizer, data={"batch_size": 16}), resume=True)
    out = capsys.readouterr().out
    for told in ("optimizer.lr 0.005 -> 0.001", "optimizer.weight_decay 0.01 -> 0.5", "data.batch_size 32 -> 16"):
        assert told in out
    groups = state(tmp_path / "runs/run/v0")["optimizer_states"][0]["param_groups"]
    assert [(group["lr"], group["weight_decay"], list(group["betas"])) for group in groups] == [
        (0.001, 0.5, [0.8, 0.9]),
        (0.001, 0.0, [0.8, 0.9]),
    ]
    rates = dict(scalars(tmp_path / "runs/run/v0")["training/learning_rate"])
    assert [rates[step] for step in (1, 2, 3, 4, 7)] == pytest.approx([0.005, 0.005, 0.001, 0.001, 0.001])


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"model": {"norm": "rmsnorm"}}, r"model\.norm 'layernorm', not 'rmsnorm'"),
        ({"model": {"position": {"name": "rope"}}}, r"model\.position\.name 'sinusoidal', not 'rope'"),
        ({"model": {"dropout": 0.5}}, r"model\.dropout 0\.0, not 0\.5"),
        ({"data": {"symbols": 7}}, r"data\.symbols 6, not 7"),
        ({"data": {"name": "copy"}}, r"data\.name 'reverse', not 'copy'"),
        ({"optimizer": {"name": "muon"}}, r"optimizer\.name 'adamw', not 'muon'"),
    ],
)
def test_another_experiment_is_refused_by_key(small: Any, sections: dict[str, Any], key: str) -> None:
    train(named(small, "run", trainer={"max_steps": 1}))
    with pytest.raises(ValueError, match=rf"--resume: .*run.v0 was trained with {key}; .*--init_from"):
        train(named(small, "run", **sections), resume=True)


def test_a_damaged_checkpoint_is_named_and_what_stands_beside_it(small: Any, tmp_path: Path) -> None:
    config = named(small, "run", trainer={"keep_every_n_steps": 3})
    train(config)
    folder = tmp_path / "runs/run/v0"
    last = folder / "last.ckpt"
    last.write_bytes(last.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"--resume: .*last\.ckpt is damaged.*copy step_00000006\.ckpt .* over it"):
        train(config, resume=True)
    (folder / "step_00000003.ckpt").replace(last)
    (folder / "step_00000006.ckpt").unlink()
    (folder / "results.json").unlink()
    assert train(config, resume=True)["steps"] == 7
    last.write_bytes((folder / "best.ckpt").read_bytes())
    with pytest.raises(ValueError, match=r"last\.ckpt holds weights alone, no training state to resume"):
        train(config, resume=True)
    last.write_bytes(b"nothing")
    (folder / "step_00000006.ckpt").unlink()
    with pytest.raises(ValueError, match=r"last\.ckpt is damaged.*--init_from .*best\.ckpt"):
        train(config, resume=True)
    (folder / "best.ckpt").unlink()
    with pytest.raises(ValueError, match="no other checkpoint in its folder"):
        train(config, resume=True)


def test_weights_of_another_shape_are_told_before_lightning_meets_them(small: Any, tmp_path: Path) -> None:
    config = small(run={"name": "run"})
    train(config)
    last = tmp_path / "runs/run/v0/last.ckpt"
    contents = checkpoint.read(last)
    name, weight = next((name, weight) for name, weight in contents["state_dict"].items() if weight.dim() == 2)
    for strange, told in ((weight[:-1].clone(), "must have the shape"), (weight * math.nan, "finite")):
        checkpoint.write({**contents, "state_dict": {**contents["state_dict"], name: strange}}, last)
        with pytest.raises(ValueError, match=rf"--resume: .*last\.ckpt is damaged.*{told}"):
            train(config, resume=True)


def test_a_checkpoint_from_before_an_option_has_its_default(small: Any, tmp_path: Path) -> None:
    config = named(small, "run", data={"symbols": 10})
    break_off(config, 5)
    last = tmp_path / "runs/run/v0/last.ckpt"
    contents = checkpoint.read(last)
    saved = contents["minitx"]["config"]
    del saved["data"]["symbols"], saved["model"]["position"]["base"]
    checkpoint.write(contents, last)
    assert train(config, resume=True)["steps"] == STEPS["max_steps"]


def test_every_nth_checkpoint_stays_and_is_whole(small: Any, tmp_path: Path) -> None:
    train(named(small, "straight", trainer={"max_steps": 6, "keep_every_n_steps": 2}))
    folder = tmp_path / "runs/straight/v0"
    names = [f"step_{step:08d}" for step in (2, 4, 6)]
    assert sorted(file.stem for file in folder.glob("step_*")) == names
    assert [state(folder, name)["global_step"] for name in names] == [2, 4, 6]
    assert minitx.load(folder / "step_00000002.ckpt", device="cpu").generate("3 1 4", max_new_tokens=5) is not None
    other = named(small, "other", trainer={"max_steps": 6})
    break_off(other, 5)
    (folder / "step_00000002.ckpt").replace(tmp_path / "runs/other/v0/last.ckpt")
    train(other, resume=True)
    ours, theirs = (state(tmp_path / f"runs/{name}/v0")["state_dict"] for name in ("straight", "other"))
    assert all(torch.equal(weight, theirs[key]) for key, weight in ours.items())
    with pytest.raises(ValueError, match=r"trainer\.keep_every_n_steps: expected an integer of at least 0, got -1"):
        train(named(small, "bad", trainer={"keep_every_n_steps": -1}))


def test_the_validation_of_a_stopped_run_does_not_choose(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not one of the plan: a run that was not stopped has none there."""
    config = named(small, "stopped", trainer={"val_every_n_steps": 3})
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4, signal.SIGTERM)  # and so behind the fifth step
        with pytest.raises(SystemExit):
            train(config)
    assert state(tmp_path / "runs/stopped/v0")["global_step"] == 5
    assert state(tmp_path / "runs/stopped/v0", "best")["global_step"] == 3


def test_a_moved_run_goes_on_choosing(small: Any, tmp_path: Path) -> None:
    """Its best validation so far is known wherever its folder is now."""
    train(named(small, "straight", optimizer={"lr": 5.0}))  # which only gets worse
    config = named(small, "moved", optimizer={"lr": 5.0})
    break_off(config, 5)
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    plain = config.to_dict()
    plain["run"]["folder"] = str(tmp_path / "elsewhere")
    train(config_from_dict(plain), resume=True)
    best = [state(tmp_path / f"elsewhere/{name}/v0", "best") for name in ("straight", "moved")]
    assert best[0]["global_step"] == best[1]["global_step"] < 6


def test_two_trainings_do_not_write_into_one_folder(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = named(small, "run")
    straight = train(config)
    original, refused = TransformerModule.training_step, []

    def training_step(self: TransformerModule, batch: Any, index: int) -> Any:
        if self.trainer.global_step == 5:
            with pytest.raises(ValueError, match=r"another process is training in .*run/v1: wait until") as told:
                train(config, resume=True)
            refused.append(told)
        return original(self, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(TransformerModule, "training_step", training_step)
        results = train(config)
    assert len(refused) == 1
    assert results["loss"] == straight["loss"]
    train(named(small, "run", trainer={"max_steps": 8}), resume=True)  # and now it may


def test_runs_that_begin_at_the_same_moment_get_folders_of_their_own(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "versions", lambda root: [])  # what each sees before the other makes its folder
    with new_folder(small()) as one, new_folder(small()) as other:
        assert (one.name, other.name) == ("v0", "v1")


def test_unfinished_files_are_removed_and_others_are_not(small: Any, tmp_path: Path) -> None:
    config = named(small, "run")
    break_off(config, 5)
    folder = tmp_path / "runs/run/v0"
    for name in (".last.ckpt.abcd1234.part", ".results.json.a_cd1234.part"):
        (folder / name).write_bytes(b"half")
    (folder / ".my.settings").write_text("mine")
    assert minitx.load(folder, device="cpu")
    train(config, resume=True)
    assert [file.name for file in folder.glob(".*")] == [".my.settings"]


def test_the_config_file_says_what_the_run_was_resumed_with(small: Any, tmp_path: Path) -> None:
    break_off(named(small, "run"), 5)
    train(named(small, "run", trainer={"max_steps": 9}), resume=True)
    assert yaml.safe_load((tmp_path / "runs/run/v0/config.yaml").read_text())["trainer"]["max_steps"] == 9


def test_an_older_version_is_told_when_the_newest_has_nothing(small: Any, tmp_path: Path, capsys: Any) -> None:
    config = named(small, "run")
    break_off(config, 5)
    break_off(config, 1)
    train(config, resume=True)
    assert "runs/run/v1 has no last.ckpt, it ended before its first save" in capsys.readouterr().out
    assert (tmp_path / "runs/run/v0/results.json").exists()
