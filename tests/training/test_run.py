"""Whole small runs: what is learnt, what is written, and what is refused before any work."""

import logging
import re
import shutil
import sys
import warnings
from dataclasses import fields
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

import minitx
from minitx.config.errors import ConfigError
from minitx.config.schema import Config, ModelConfig
from minitx.data.loader import TrainingBatches
from minitx.evaluation.metrics import Scores
from minitx.training import api, progress
from minitx.training.api import train_config as train
from minitx.training.module import TransformerModule
from minitx.training.resolve import resolve
from predictors import KINDS_OF
from tests.training.interrupting import events, state, weights


@pytest.mark.parametrize("architecture", KINDS_OF)
def test_what_a_run_writes(small: Any, folder: Path, architecture: str, capsys: Any, monkeypatch: Any) -> None:
    """On a CPU from its first to its last step, beside a GPU that cannot be used; a pipe gets a line for each step."""
    for name in ("TERMINAL_SECONDS", "FILE_SECONDS"):
        monkeypatch.setattr(progress, name, 0.0)
    monkeypatch.setattr("minitx.inference.predictor.best_device", lambda: "mps")
    log = {"attention": {"pictures": True, "every_n_steps": 3}}
    fixed = {"length": [4, 4]} if architecture == "encoder_only" else {}  # its slots would give the length away
    model = {"architecture": architecture, "n_layers": 2}
    before = [*warnings.filters], logging.getLogger("lightning.pytorch").level
    results = train(small(data=fixed, model=model, trainer={"accumulate_grad_batches": 2}, log=log))
    assert before == ([*warnings.filters], logging.getLogger("lightning.pytorch").level)
    out = capsys.readouterr().out
    assert all(part in out for part in ("step 3/6", "step 6/6", "loss", "exact match", "free-running")), out
    lines = [line for line in out.splitlines() if line.startswith("step ")]
    assert {line.split()[1] for line in lines if line.endswith(" left")} == {f"{step}/6" for step in range(1, 7)}
    assert all("loss " in line for line in lines)
    assert "cannot be locked" not in out
    assert any(re.fullmatch(r"step 4/6  loss \S+  .*[\d,]+ tokens/s  \d+:\d\d left", line) for line in lines), lines
    assert {file.name for file in folder.iterdir() if not file.name.startswith("events.")} == {
        "config.yaml", "last.ckpt", "best.ckpt", "results.json", "heads.json",
    }  # fmt: skip
    written = yaml.safe_load((folder / "config.yaml").read_text())
    assert written["model"]["vocab_size"] == 12
    assert [*written] == [field.name for field in fields(Config)], "in the order of the schema"

    log = events(folder)
    scalars = set(log.Tags()["scalars"])
    assert scalars >= {"training/loss", "training/learning_rate", "training/tokens_per_second", "validation/loss"}
    assert scalars >= {"training/gradient_norm", "validation/exact_match", "validation/token_accuracy"}
    assert not scalars & {"validation/selection", "training/skipped_steps"}
    assert [event.step for event in log.Scalars("validation/exact_match")] == [3, 6], "as in the other curves"
    places = product(KINDS_OF[architecture], (1, 2), (1, 2))
    pictures = {f"attention_{kind}/layer_{layer}/example_{example}" for kind, layer, example in places}
    assert set(log.Tags()["images"]) == pictures
    assert [event.step for event in log.Images(min(pictures))] == [0, 3, 6]
    answers = log.Tensors("answers/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert all(word in answers for word in ("input", "expected", "generated"))

    # As TensorBoard's HPARAMS reads them.
    contents = log.PluginTagToContent("hparams")
    start = plugin_data_pb2.HParamsPluginData.FromString(contents["_hparams_/session_start_info"]).session_start_info
    end = plugin_data_pb2.HParamsPluginData.FromString(contents["_hparams_/session_end_info"]).session_end_info
    assert end.status == api_pb2.STATUS_SUCCESS
    assert start.group_name.endswith("small/v0"), "runs of other folders are rows of their own"
    hyperparameters = {key: getattr(value, str(value.WhichOneof("kind"))) for key, value in start.hparams.items()}
    assert (hyperparameters["model.architecture"], hyperparameters["optimizer.lr"]) == (architecture, 5e-3)
    assert (hyperparameters["data.length"], hyperparameters["run.seed"]) == ("[4, 4]" if fixed else "[1, 5]", 1)
    assert hyperparameters["model.norm_first"] is True
    assert not [key for key in hyperparameters if key.startswith(("log.", "run.folder")) or key == "model.window"]
    for name in ("exact_match", "seconds"):
        assert log.Scalars(f"when_finished/{name}")[-1].value == pytest.approx(results[name])


def test_options_without_effect_are_listed(small: Any, capsys: Any) -> None:
    sys.stdout.reconfigure(encoding="ascii")  # type: ignore[attr-defined]
    model = {"position": (rope := {"name": "rope", "factor": 4.0}), "window_position": {**rope, "scaling": "ntk"}}
    train(small(run={"name": "modèle"}, model=model, trainer={"max_steps": 1}))
    notes = re.findall(r"model\.(.*) has no effect without model\.(.*)", out := capsys.readouterr().out)
    assert notes == [("position.factor", "position.scaling"), ("window_position", "window")]
    assert not api._without_effect(ModelConfig(position={"name": "own", "scaling": "none"})), "which has no factor"
    assert "/mod\\xe8le/v0: " in out


def test_a_line_that_is_rewritten_fits_the_terminal(small: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    train(small())
    rewritten = [line.removeprefix("\033[2K") for line in re.findall(r"[^\r\n]+(?=\r)", capsys.readouterr().out)]
    assert rewritten
    assert {*map(len, rewritten)} == {40}


def test_validations_do_not_change_tokens_per_second(small: Any, folder: Path, monkeypatch: Any, capsys: Any) -> None:
    """Two batches of a step take 1/4 second, a validation and a save 100 each; the first line comes after one."""
    clock = [7.0]

    def take(seconds: float, hook: str) -> None:
        original = getattr(TransformerModule, hook)
        wait = lambda *given: clock.append(clock[-1] + seconds) or original(*given)  # noqa: E731
        monkeypatch.setattr(TransformerModule, hook, wait)

    take(0.25, "training_step")
    take(100.0, "on_validation_epoch_end")
    take(100.0, "on_save_checkpoint")
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: clock[-1]))
    train(config := small(trainer={"max_steps": 9, "save_every_n_steps": 3, "accumulate_grad_batches": 2}))
    batches = TrainingBatches(resolve(config).task, config, 0, lambda: 0)
    steps = [int(batches.step(start)[0].step_labels) for start in range(0, 18, 2)]
    rates = [(rate.step, rate.value) for rate in events(folder).Scalars("training/tokens_per_second")]
    since = [(2, 0), (4, 3), (6, 4), (8, 6)]  # the latest curve or validation
    assert rates == [(end, pytest.approx(2 * sum(steps[start:end]) / (end - start))) for end, start in since]
    first = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("step "))
    assert re.fullmatch(r"step 2/9 .* 0:03 left", first), "seven steps of half a second"


def test_a_run_learns_reversal_into_one_file(small: Any, folder: Path) -> None:
    """Documents and masked tokens: test_text_training.py. The other architectures: pages of the guide, test_docs.py."""
    steps = dict.fromkeys(("max_steps", "val_every_n_steps", "save_every_n_steps"), 120)
    data = {"length": [3, 3], "batch_size": 64}
    results = train(small(data=data, optimizer={"lr": 1e-2}, trainer=steps))
    assert results["exact_match"] > 0.9, results
    alone = shutil.copy(folder / "best.ckpt", folder.parents[2] / "alone.ckpt")
    assert minitx.load(alone, device="cpu").generate("3 1 4") == "4 1 3"
    assert minitx.load(folder.parent, device="cpu").generate(["0 5 2"]) == ["2 5 0"]


def test_another_seed_gives_other_weights_and_from_the_same_weights_other_batches(small: Any, trained: Any) -> None:
    """The same seed gives the same run: test_resume.py."""
    runs = ({"seed": seed, "init_from": str(trained())} for seed in (1, 2))
    one, other = (trained(run=each, trainer={"max_steps": 1}) for each in runs)
    assert not torch.equal(weights(one)["embedding.table.weight"], weights(other)["embedding.table.weight"])
    one, other = (resolve(small(run={"seed": seed})).model.embedding.table.weight for seed in (1, 2))
    assert not torch.equal(one, other)


def test_every_batch_has_a_seed_of_its_own(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout and random position ids differ from batch to batch, also within a step, and between processes."""
    seeds, original = [], TransformerModule.summed_loss
    recorded = lambda *given: seeds.append(torch.initial_seed()) or original(*given)  # noqa: E731
    monkeypatch.setattr(TransformerModule, "summed_loss", recorded)
    for rank in (0, 1):
        monkeypatch.setattr(TransformerModule, "global_rank", rank)
        train(small(trainer={"max_steps": 2, "accumulate_grad_batches": 2}))
    assert len({*seeds}) == len(seeds) == 8


@pytest.mark.parametrize(("name", "value", "message"), [
    ("LOCAL_RANK", "1", "RANK, LOCAL_RANK and SLURM_PROCID must be 0 or unset for a single process"),
    ("RANK", "x", "RANK, LOCAL_RANK and SLURM_PROCID must be 0 or unset for a single process"),
    ("SLURM_PROCID", "1", "RANK, LOCAL_RANK and SLURM_PROCID must be 0 or unset for a single process"),
    ("WORLD_SIZE", "2", "2 processes were launched, but trainer.devices and trainer.num_nodes ask for 1"),
    ("WORLD_SIZE", "x", "x processes were launched, but trainer.devices and trainer.num_nodes ask for 1"),
    ("NODE_RANK", "0", "num_nodes 2: start it on each machine, with torchrun or srun"),
    ("SLURM_NTASKS", "2", "SLURM_NTASKS is 2 without SLURM_NTASKS_PER_NODE: submit the job with --ntasks-per-node"),
    ("SLURM_STEP_ID SLURM_NTASKS SLURM_NTASKS_PER_NODE", "2", "devices is 1, and SLURM_NTASKS_PER_NODE is 2"),
])  # fmt: skip
def test_a_launchers_settings(small: Any, folder: Path, monkeypatch: Any, name: str, value: str, message: str) -> None:
    for other in ("SLURM_JOB_NAME", "RANK", "LOCAL_RANK", "MASTER_ADDR"):  # an earlier run may have set the last three
        monkeypatch.delenv(other, raising=False)
    for each in name.split():
        monkeypatch.setenv(each, value)
    with pytest.raises(ConfigError, match=message):
        train(small(trainer={"devices": 1, "num_nodes": 2 if name == "NODE_RANK" else 1}))
    assert not (folder.exists() if "NTASKS" in name else [*folder.glob("*")])


def test_a_single_process_may_belong_to_a_larger_job(small: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES"):
        monkeypatch.setenv(name, "2")
    train(small(trainer={"max_steps": 1}))
    assert (folder / "results.json").exists()


def test_the_best_has_most_exact_matches_and_then_the_lowest_loss(small: Any, folder: Path, monkeypatch: Any) -> None:
    original, figures = Scores.means, iter([(0.499, 0.01), (0.5, 3.0), (0.5, 2.0), (0.5, 2.5)])

    def means(self: Scores) -> dict[str, float]:
        exact, loss = next(figures, (None, 0.0))
        return original(self) if exact is None else {"exact_match": exact, "token_accuracy": exact, "loss": loss}

    monkeypatch.setattr(Scores, "means", means)
    train(small(trainer={"max_steps": 4, "val_every_n_steps": 1}))
    assert state(folder, "best")["global_step"] == 3
