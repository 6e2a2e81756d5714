"""Whole runs, small: what is learnt, what is written, and that interrupting changes nothing."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

import minitx
from minitx.config.schema import config_from_dict
from minitx.training.api import train_config as train
from minitx.training.module import TransformerModule
from minitx.training.resolve import resolve

ARCHITECTURES = {
    "encoder_decoder": {"encoder", "decoder", "cross"},
    "decoder_only": {"decoder"},
    "encoder_only": {"encoder"},
}


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def session(log: EventAccumulator) -> tuple[dict[str, Any], dict[str, float]]:
    """What TensorBoard's HPARAMS reads: hyperparameters and final figures."""
    contents = log.PluginTagToContent("hparams")
    start = plugin_data_pb2.HParamsPluginData.FromString(contents["_hparams_/session_start_info"]).session_start_info
    end = plugin_data_pb2.HParamsPluginData.FromString(contents["_hparams_/session_end_info"]).session_end_info
    assert end.status == api_pb2.STATUS_SUCCESS
    assert start.group_name.endswith("small/v0"), "runs of other folders are rows of their own"
    values = {key: getattr(value, str(value.WhichOneof("kind"))) for key, value in start.hparams.items()}
    return values, {tag: log.Scalars(tag)[-1].value for tag in log.Tags()["scalars"] if tag.startswith("final/")}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_run_learns_reversal_and_writes_what_it_should(small: Any, tmp_path: Path, architecture: str) -> None:
    fixed = {"length": [4, 4]} if architecture == "encoder_only" else {}  # its slots would give the length away
    config = small(
        data=fixed,
        model={"architecture": architecture, "n_layers": 2},
        trainer={"max_steps": 500, "val_every_n_steps": 250, "precision": "32-true"},
    )
    results = train(config)
    folder = tmp_path / "runs/small/v0"
    assert {file.name for file in folder.iterdir() if not file.name.startswith("events.")} == {
        "config.yaml", "last.ckpt", "best.ckpt", "results.json", "heads.json",
    }  # fmt: skip
    assert results["exact_match"] > 0.9, results
    assert results["split"] == "test"
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["vocab_size"] == 12

    log = events(folder)
    scalars = set(log.Tags()["scalars"])
    assert scalars >= {"training/loss", "training/learning_rate", "training/tokens_per_second", "validation/loss"}
    assert scalars >= {"training/gradient_norm", "validation/exact_match", "validation/token_accuracy"}
    assert "validation/selection" not in scalars
    assert [event.step for event in log.Scalars("validation/exact_match")] == [250, 500], "as in the other curves"
    pictures = set(log.Tags()["images"])
    expected = {
        f"attention_{kind}/layer_{layer}/example_{example}"
        for kind in ARCHITECTURES[architecture]
        for layer in (1, 2)
        for example in (1, 2)
    }
    assert pictures == expected
    assert [event.step for event in log.Images(min(expected))] == [250, 500]
    assert len(list(folder.glob("events.*"))) == 1, "a second writer hides data"
    answers = log.Tensors("answers/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert all(word in answers for word in ("input", "expected", "generated"))

    hyperparameters, final = session(log)
    assert (hyperparameters["model.architecture"], hyperparameters["optimizer.lr"]) == (architecture, 5e-3)
    assert (hyperparameters["data.length"], hyperparameters["run.seed"]) == ("[4, 4]" if fixed else "[1, 5]", 1)
    assert hyperparameters["model.norm_first"] is True
    assert not [key for key in hyperparameters if key.startswith(("log.", "run.folder")) or key == "model.window"]
    assert final["final/exact_match"] == pytest.approx(results["exact_match"])
    assert final["final/seconds"] == pytest.approx(results["seconds"])

    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(folder / "best.ckpt", alone / "model.ckpt")
    contents = torch.load(alone / "model.ckpt", weights_only=True)
    assert contents["minitx"]["config"]["data"]["name"] == "reverse"
    predictor = minitx.load(alone / "model.ckpt", device="cpu")
    assert predictor.generate("3 1 4 1") == "1 4 1 3"
    assert minitx.load(tmp_path / "runs/small", device="cpu").generate(["0 5 2 2"]) == ["2 2 5 0"]


def test_language_model_learns_its_text(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat.\n" * 400)
    plain = small().to_dict()
    plain["data"] = {"name": "text", "path": str(text), "block": 24, "validation_size": 20, "batch_size": 16}
    plain["model"]["architecture"] = "decoder_only"
    plain["trainer"] |= {"max_steps": 200, "val_every_n_steps": 200, "precision": "32-true"}
    config = config_from_dict(plain)
    results = train(config)
    assert results["split"] == "validation"
    assert results["loss"] < 0.2
    assert (
        minitx.load(tmp_path / "runs/small", device="cpu").generate("the cat", max_new_tokens=17)
        == " sat on the mat.\n"
    )


@pytest.mark.parametrize(("every", "accumulate"), [(3, 1), (2, 2), (100, 1)])
def test_the_last_step_is_validated_whatever_the_interval(
    small: Any, tmp_path: Path, every: int, accumulate: int
) -> None:
    """Otherwise the figures would be those of weights from long before, and nobody would know."""
    trainer = {"max_steps": 5, "val_every_n_steps": every, "accumulate_grad_batches": accumulate}
    train(small(trainer=trainer, log={"attention": {"every_n_validations": 1}}))
    folder = tmp_path / "runs/small/v0"
    told = events(folder)
    expected = [*range(every, 5, every), 5]
    assert [point.step for point in told.Scalars("validation/loss")] == expected
    tags = told.PluginTagToContent("minitx")
    assert tags
    assert {point.step for tag in tags for point in told.Tensors(tag)} == set(expected)
    choices = dict(zip(expected, (point.value for point in told.Scalars("validation/exact_match")), strict=True))
    best = torch.load(folder / "best.ckpt", weights_only=True)["global_step"]
    assert choices[best] == max(choices.values())


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int, number: int) -> None:
    """Send a signal in the middle of a training step."""
    original = TransformerModule.training_step

    def training_step(self: TransformerModule, batch: Any, index: int) -> Any:
        if self.trainer.global_step == step and not index % 2:  # once, though two batches make a step
            os.kill(os.getpid(), number)
        return original(self, batch, index)

    monkeypatch.setattr(TransformerModule, "training_step", training_step)


@pytest.mark.parametrize(
    ("number", "optimizer", "step"),
    [(signal.SIGTERM, "adamw", 3), (signal.SIGINT, "muon", 3), (signal.SIGTERM, "adamw", 6)],  # 6 is the last one
)
def test_resumed_equals_uninterrupted_bit_for_bit(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, optimizer: str, step: int
) -> None:
    sections = {
        "model": {"dropout": 0.1, "attention_dropout": 0.1},
        "optimizer": {"name": optimizer},
        "trainer": {"max_steps": 7, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "label_smoothing": 0.1},
    }
    train(small(run={"name": "straight"}, **sections))
    before = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}
    with monkeypatch.context() as patch:
        interrupt_at(patch, step, number)
        with pytest.raises(SystemExit) as stopped:
            train(small(run={"name": "broken"}, **sections))
    assert stopped.value.code == 128 + number
    for which, handler in before.items():
        signal.signal(which, handler)
    train(small(run={"name": "broken"}, **sections), resume=True)
    for file in ("last.ckpt", "best.ckpt"):
        straight, broken = (
            torch.load(tmp_path / f"runs/{name}/v0/{file}", weights_only=True) for name in ("straight", "broken")
        )
        assert straight["global_step"] == broken["global_step"] == 7
        for name, tensor in straight["state_dict"].items():
            assert torch.equal(tensor, broken["state_dict"][name]), name
    assert not (tmp_path / "runs/broken/v1").exists()


def test_resume_refuses_another_model_and_a_missing_run(small: Any) -> None:
    with pytest.raises(ValueError, match="--resume: there is no"):
        train(small(), resume=True)
    train(small())
    with pytest.raises(ValueError, match=r"model\.d_ff 64, not 32"):
        train(small(model={"d_ff": 32}), resume=True)


def test_seconds_go_on_where_an_interrupted_run_stopped(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {"trainer": {"max_steps": 6, "val_every_n_steps": 6}}
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2, signal.SIGTERM)
        patch.setattr(TransformerModule, "seconds", property(lambda self: 1000.0))
        with pytest.raises(SystemExit):
            train(small(**sections))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert 1000.0 < train(small(**sections), resume=True)["seconds"] < 1100.0


def test_each_run_has_its_own_folder(small: Any, tmp_path: Path) -> None:
    train(small())
    train(small())
    assert sorted(folder.name for folder in (tmp_path / "runs/small").iterdir()) == ["v0", "v1"]


def test_same_seed_same_weights_other_seed_others(small: Any, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(small(run={"name": name, "seed": seed}, trainer={"max_steps": 2}))
    a, b, c = (torch.load(tmp_path / f"runs/{name}/v0/last.ckpt", weights_only=True)["state_dict"] for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["model.embedding.table.weight"], c["model.embedding.table.weight"])


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"trainer": {"max_steps": 0}}, "trainer.max_steps"),
        ({"trainer": {"label_smoothing": 1.0}}, "trainer.label_smoothing"),
        ({"log": {"every_n_steps": 0}}, "log.every_n_steps"),
        ({"model": {"position": {"name": "learned", "max_len": 5}}}, "model.position.max_len must be at least 6"),
        ({"model": {"vocab_size": 3}}, "model.vocab_size"),
        ({"model": {"dropout": 1.0}}, "model.dropout"),
        ({"run": {"name": "../elsewhere"}}, "run.name"),
        ({"data": {"batch_size": 0}}, "data.batch_size"),
    ],
)
def test_bad_configs_are_refused_before_any_work(small: Any, tmp_path: Path, sections: Any, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        train(small(**sections))
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written(small: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match=r"run\.folder"):
        train(small(run={"folder": str(tmp_path / "file")}))


def test_launched_processes_must_fit(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes were launched"):
        train(small(trainer={"devices": 1}))


def test_prepare_resolves_the_config(small: Any) -> None:
    config, task, model, *_ = resolve(small())
    assert config.data["name"] == "reverse"
    assert config.data["test_size"] == 64
    assert config.model.vocab_size == task.vocabulary.vocab_size == model.embedding.table.num_embeddings
    assert config.model.position["base"] == 10000.0


def test_progress_tells_step_loss_match_and_speed(small: Any, capsys: pytest.CaptureFixture[str]) -> None:
    train(small())
    out = capsys.readouterr().out
    assert "step 3/6" in out
    assert "step 6/6" in out
    assert "exact match" in out
    assert "loss" in out
    assert "free-running" in out
