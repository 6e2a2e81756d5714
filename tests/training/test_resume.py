"""A run that was killed and resumed equals one that was not: weights, curves, selection; and what may not change."""

import json
import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError
from minitx.training import api, run
from minitx.training.api import train_config as train
from minitx.training.resilience.folder_lock import locked, locked_folder
from minitx.training.resolve import resolve
from tests.training.interrupting import assert_equal, assert_same_run, break_off, killed, scalars, state, stopped

Sections = dict[str, dict[str, Any]]


def seven(**sections: dict[str, Any]) -> Sections:
    """Seven steps with four validations, and saves at steps 2, 4, 6 and at the end."""
    steps = {"max_steps": 7, "val_every_n_steps": 2, "save_every_n_steps": 2}
    return {"log": {"every_n_steps": 1}, **sections, "trainer": {**steps, **sections.get("trainer", {})}}


DROPS = {"dropout": 0.1, "attention_dropout": 0.1}
INTERRUPTIONS: dict[str, tuple[Sections, AbstractContextManager[None], int]] = {
    "an encoder, during a validation": ({
        "data": {"length": [4, 4]},
        "model": {"architecture": "encoder_only", "position_ids": {"name": "randomized", "range": 64, "longest": 16}},
        "optimizer": {"schedule": {"name": "linear", "warmup_steps": 2}},
        "trainer": {"precision": "bf16-true"},
    }, killed(4, "validation_step"), 2),
    "a decoder, at the end of a validation": ({
        "model": {"architecture": "decoder_only", "position_ids": {"name": "offset", "largest": 20}, **DROPS},
        "optimizer": {"schedule": {"name": "noam", "warmup_steps": 4}},
        "trainer": {"precision": "bf16-mixed"},
    }, killed(6, "on_validation_epoch_end"), 4),
    "accumulated, with attention": ({
        "model": DROPS,
        "trainer": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1, "label_smoothing": 0.1},
        "optimizer": {"schedule": {"name": "cosine", "warmup_steps": 3}},
        "log": {"every_n_steps": 1, "attention": {"every_n_steps": 2, "every_n_validations": 2, "examples": 2}},
    }, killed(5), 4),
    "averaged, a signal before a validation, killed after it, stopped after the third": ({
        "trainer": {"ema": 0.9, "stop_when": {"metric": "loss", "at_most": 100.0, "patience": 3},
                    "save_every_n_steps": 7},
    }, stopped(3, signal.SIGTERM), 4),
    "64-true, muon, accumulated, Ctrl-C": ({
        "optimizer": {"name": "muon"},
        "trainer": {"precision": "64-true", "accumulate_grad_batches": 3, "val_every_n_steps": 3},
    }, stopped(3, signal.SIGINT), 4),
    "a signal in the last step": ({"model": DROPS, "trainer": {"accumulate_grad_batches": 2}},
                                  stopped(6, signal.SIGTERM), 7),
}  # fmt: skip
"""Sections, the interruption, and the step that is saved then."""


@pytest.mark.parametrize("kind", INTERRUPTIONS)
def test_interrupted_and_resumed_is_never_interrupted(small: Any, trained: Any, folder: Path, kind: str) -> None:
    """No validation is left out or done twice."""
    sections, interruption, step = INTERRUPTIONS[kind]
    sections = seven(**sections)
    with interruption:
        train(small(**sections))
    assert state(folder)["global_step"] == step
    if "killed after it" in kind:
        with killed(step + 1):
            train(small(**sections), resume=True)
    train(small(**sections), resume=True)
    assert_same_run(trained(**sections), folder)


def test_a_run_before_score_biases_were_left_alone(small: Any, trained: Any, folder: Path, monkeypatch: Any) -> None:
    """Its optimizer's groups had other sizes; without decay and clipping they make no difference to the weights."""
    model, optimizer = {"position": {"name": "transformer_xl"}}, {"name": "muon", "weight_decay": 0.0}
    sections = seven(model=model, optimizer=optimizer, trainer={"gradient_clip_val": 0.0})
    with monkeypatch.context() as patch:
        patch.setattr("minitx.training.optim.biases_of_scores", lambda model: set())
        break_off(small(**sections), 5)
    train(small(**sections), resume=True)
    assert_equal(*(state(each)["state_dict"] for each in (folder, trained(**sections))))


def test_weights_without_a_gradient_are_resumed(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitx.nn.FeedForward.forward", lambda ffn, x: x)
    break_off(small(optimizer={"name": "muon"}), 5)  # neither Muon nor AdamW keeps a state of them
    assert train(small(optimizer={"name": "muon"}), resume=True)["steps"] == 6


def test_other_text_is_refused(small: Any, cat: Path, folder: Path) -> None:
    """Another text, and the same one but for three letters; earlier versions hashed less of it."""
    break_off(small(data={"path": str(cat)}), 5)
    text, moved = cat.read_text(), cat.with_name("moved.txt")
    for path, changed in ((cat, "the cat sat on a mat, too.\n" * 200), (moved, f"{text[:28]}tac{text[31:]}")):
        path.write_text(changed)
        with pytest.raises(ValueError, match=r"--resume: the data differs from the data .*small.v0 was trained on"):
            train(small(data={"path": str(path)}), resume=True)
    moved.write_text(text)
    contents = checkpoint.read(folder / "last.ckpt")
    checkpoint.write(contents | {"data_digest": contents["data_digest"][:16]}, folder / "last.ckpt")
    assert train(small(data={"path": str(moved)}), resume=True)["steps"] == 6


def test_more_steps_continue_a_completed_run(small: Any, trained: Any, finished: Any, capsys: Any) -> None:
    def sections(steps: int, **optimizer: float) -> Sections:
        constant = {"schedule": {"name": "constant", "warmup_steps": 0}, **optimizer}
        return seven(optimizer=constant, trainer={"max_steps": steps, "val_every_n_steps": 3, "save_every_n_steps": 3})

    straight, found = trained(**sections(9)), finished(**sections(3))
    capsys.readouterr()
    train(small(**sections(9)), resume=True)
    assert "--resume: continues after step 3\n--resume: trainer.max_steps 3 -> 9\n" in capsys.readouterr().out
    assert_same_run(straight, found)
    assert train(small(**sections(9)), resume=True) == json.loads((found / "results.json").read_text())
    assert "small/v0 has done its 9 steps already; a larger trainer.max_steps continues" in capsys.readouterr().out
    (found / "results.json").unlink()  # as after a signal in the last step
    for other, got in ((sections(9, lr=0.5), "above 9: optimizer.lr 0.005 -> 0.5"), (sections(4), "least 9, got 4")):
        with pytest.raises(ValueError, match=rf"v0 has done 9 steps already; .*trainer\.max_steps .*{got}"):
            train(small(**other), resume=True)
    (own := found / "own.py").touch()
    values = small(**sections(9) | {"log": {"every_n_steps": 5}}).to_dict() | {"imports": [str(own)]}
    assert train(values, resume=True)["steps"] == 9


def test_other_settings_are_taken_and_printed(small: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    constant = {"name": "constant", "warmup_steps": 2}
    break_off(small(**seven(optimizer={"schedule": constant})), 3)
    with pytest.raises(ValueError, match=r"v0 has done 2 steps already; .* above 2: trainer\.max_steps 7 -> 2"):
        train(small(**seven(optimizer={"schedule": constant}, trainer={"max_steps": 2})), resume=True)
    optimizer = {"lr": 0.001, "weight_decay": 0.5, "betas": [0.8, 0.9], "schedule": constant}
    train(small(**seven(optimizer=optimizer, data={"batch_size": 16})), resume=True)
    out = capsys.readouterr().out
    for change in ("optimizer.lr 0.005 -> 0.001", "optimizer.weight_decay 0.01 -> 0.5", "data.batch_size 32 -> 16"):
        assert change in out
    groups = state(folder)["optimizer_states"][0]["param_groups"]
    found = [(group["lr"], group["weight_decay"], [*group["betas"]]) for group in groups]
    assert found == [(0.001, decay, [0.8, 0.9]) for decay in (0.5, 0.0)]
    rates = dict(scalars(folder)["training/learning_rate"])
    assert [rates[step] for step in (1, 2, 3, 4, 7)] == pytest.approx([0.0025, 0.005, 0.001, 0.001, 0.001])


@pytest.mark.parametrize(("sections", "key"), [
    ({"model": {"norm": "rmsnorm"}}, r"model\.norm 'layernorm', not 'rmsnorm'"),
    ({"model": {"position": {"name": "rope"}}}, r"model\.position\.name 'sinusoidal', not 'rope'"),
    ({"model": {"dropout": 0.5}}, r"model\.dropout 0\.0, not 0\.5"),
    ({"data": {"symbols": 7}}, r"data\.symbols 6, not 7"),
    ({"data": {"name": "copy"}}, r"data\.name 'reverse', not 'copy'"),
    ({"optimizer": {"name": "muon"}}, r"optimizer\.name 'adamw', not 'muon'"),
])  # fmt: skip
def test_another_experiment_is_refused_by_key(small: Any, trained: Any, sections: Sections, key: str) -> None:
    config = small(run={"folder": str(trained().parents[1])}, **sections)
    typed = {"run": vars(config.run), **sections, "data": config.data}  # without the defaults of other keys
    for values in (config, typed):
        with pytest.raises(ConfigError, match=rf"^--resume: .*small.v0 was trained with {key}; .*--init_from"):
            train(values, resume=True)


def test_a_damaged_checkpoint_is_named_and_another_one_proposed(small: Any, finished: Any) -> None:
    sections = seven(trainer={"keep_every_n_steps": 3})
    config, folder = small(**sections), finished(**sections)
    last, best = folder / "last.ckpt", folder / "best.ckpt"
    checkpoint.write(state(folder) | {"seconds": -1.0}, folder / "bad.ckpt")
    for contents, removed, sentence in (
        (last.read_bytes()[:5000], "", r"is damaged.*copy step_00000006\.ckpt to last"),
        ((folder / "bad.ckpt").read_bytes(), "", r"is damaged: seconds must .*copy step_00000006\.ckpt to last"),
        (best.read_bytes(), "", "holds weights alone, no training state to resume"),
        (b"nothing", "step_*.ckpt", r"is damaged.*--init_from .*best\.ckpt"),
        (b"nothing", "best.ckpt", "is damaged.*no other checkpoint in its folder"),
    ):
        last.write_bytes(contents)
        for file in folder.glob(removed or "none"):
            file.unlink()
        with pytest.raises(ValueError, match=rf"^--resume: [^(]*last\.ckpt {sentence}"):
            train(config, resume=True)


def test_damaged_results_are_measured_again(small: Any, finished: Any) -> None:
    file = finished() / "results.json"
    expected, start = json.loads(file.read_bytes()), resolve(small(), resume=True).start
    for damaged in (b"", b"3", b"\xff", b"[" * 10**6, b'{"steps": 6', b'{"steps": 5}'):
        file.write_bytes(damaged)
        assert start.finished(small()) is None
    assert train(small(), resume=True) | {"seconds": 0} == expected | {"seconds": 0}
    with pytest.raises(ConfigError, match="2 processes need an example each"):
        train(small(data={"validation_size": 1}, trainer={"max_steps": 8, "devices": 2}), resume=True)
    (best := file.with_name("best.ckpt")).unlink()
    best.mkdir()  # cannot be read, as a file of another user
    with pytest.raises(OSError, match=r"best\.ckpt"):
        train(small(trainer={"max_steps": 8}), resume=True)
    assert json.loads(file.read_bytes()).keys() == expected.keys()


def test_every_nth_checkpoint_is_kept_and_complete(small: Any, trained: Any, finished: Any) -> None:
    sections = seven(trainer={"keep_every_n_steps": 3})
    folder = finished(**sections)
    assert sorted(file.stem for file in folder.glob("step_*")) == [f"step_{step:08d}" for step in (3, 6)]
    (folder / "step_00000003.ckpt").replace(folder / "last.ckpt")
    (folder / "results.json").unlink()
    train(small(**sections), resume=True)
    assert_same_run(trained(**sections), folder)
    train(small(**seven(trainer={"max_steps": 9}), optimizer={"lr": 10.0}), resume=True)
    assert state(folder, "best")["minitx"]["config"]["optimizer"]["lr"] < 10.0, "no later step is better"
    (folder / "step_00000006.ckpt").replace(folder / "last.ckpt")
    train(small(**sections, optimizer={"lr": 10.0}), resume=True)
    assert state(folder, "best")["minitx"]["config"]["optimizer"]["lr"] == 10.0, "not of the steps that were replaced"


def test_two_trainings_do_not_write_into_one_folder(small: Any, finished: Any) -> None:
    """At the same time; or one after the other, from a checkpoint that was read before the other process saved."""
    folder, longer = finished(), small(trainer={"max_steps": 8})
    with locked_folder(longer, folder), pytest.raises(ConfigError, match=r"another process is training in .*v0: wait"):
        train(longer, resume=True)
    stale = resolve(longer, resume=True)
    os.utime(folder / "last.ckpt")
    with pytest.raises(ConfigError, match=r"another process has just trained in .*small/v0: repeat the command"):
        run.train(stale)
    assert run.train(resumed := api.resolved(longer, resume=True), api.AllExtras())["steps"] == 8  # the lock has ended
    assert not resumed.start.contents, "freed when they are loaded"


def test_runs_that_start_at_once_have_folders_of_their_own(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "versions", lambda root: [])  # as each sees it before the other creates its folder
    with locked_folder(small(), None) as one, locked_folder(small(), None) as other:
        assert (one.name, other.name) == ("v0", "v1")


@pytest.mark.parametrize(("left", "taken"), [
    ([], "v0"), (["config.yaml", ".config.yaml.0123abcd.part"], "v0"), (["events.out.tfevents.1.x"], "v1")
])  # fmt: skip
def test_a_run_takes_an_empty_folder(small: Any, folder: Path, left: list[str], taken: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("minitx.training.resilience.folder_lock.locked", lambda path: {taken: locked}[path.name](path))
    folder.mkdir(parents=True)
    for name in left:
        (folder / name).write_text("x")
    with locked_folder(small(), None) as given:  # locks no other, which another process may be about to resume
        assert given == folder.with_name(taken)


def test_a_long_name_and_a_link_to_nowhere_are_refused(small: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """As to a disk that is not mounted."""
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match=r"run.folder: '.*runs/nnn.*' cannot be written"):
        locked_folder(small(run={"name": "n" * 256}), None).__enter__()
    (tmp_path / "runs").rmdir()
    monkeypatch.setattr("itertools.count", lambda first: range(first, first + 3))
    (tmp_path / "runs").symlink_to(tmp_path / "unmounted/disk")
    with pytest.raises(ConfigError, match=r"run.folder: '.*/small' cannot be written \(.*runs is a link to a missing"):
        locked_folder(small(), None).__enter__()


def test_a_resumed_folder_is_cleaned_and_has_the_new_config_and_its_clock_continues(
    small: Any, folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("minitx.training.module.TransformerModule.seconds", property(lambda self: 1000.0))
        break_off(small(), 5)
    break_off(small(), 1)
    for name in (".last.ckpt.abcd1234.part", ".results.json.a_cd1234.part"):
        (folder / name).write_bytes(b"half")
    (folder / ".my.settings").write_text("mine")
    assert 1000.0 < train(small(trainer={"max_steps": 7}), resume=True)["seconds"] < 1100.0
    assert "runs/small/v1 has no last.ckpt, it ended before its first save" in capsys.readouterr().out
    assert [file.name for file in folder.glob(".*")] == [".my.settings"]
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["max_steps"] == 7
