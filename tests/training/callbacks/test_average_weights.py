"""The moving average of weights, and the mean of checkpoints: equal to sums written out."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import minitx
from minitx.cli.main import main
from minitx.config.errors import ConfigError
from minitx.training.api import train_config as train
from minitx.training.callbacks.average_weights import average
from minitx.training.module import TransformerModule
from minitx.training.resolve import resolve
from tests.training.interrupting import assert_equal, state, weights

KEPT = {"keep_every_n_steps": 1}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_average_is_its_definition_and_leaves_training_alone(small: Any, trained: Any, accumulate: int) -> None:
    """After each optimizer step, of however many batches."""
    trainer = {**KEPT, "accumulate_grad_batches": accumulate}
    plain, averaged = trained(trainer=trainer), trained(trainer={**trainer, "ema": 0.3})
    expected = resolve(small()).model.state_dict()
    for step in range(1, 7):
        decay, name = min(0.3, (1 + step) / (10 + step)), f"step_{step:08d}"
        now = weights(plain, name)
        expected = {key: decay * weight + (1 - decay) * now[key] for key, weight in expected.items()}
        assert_close(weights(averaged, name), expected)
        assert_equal(weights(averaged, name, "trained_weights"), now)  # training does not depend on the average


def test_validation_best_and_results_are_of_the_average(small: Any, folder: Path, monkeypatch: Any) -> None:
    judged: dict[int, dict[str, Tensor]] = {}
    original = TransformerModule.on_validation_epoch_end

    def record(self: TransformerModule) -> None:
        judged[self.global_step] = copy.deepcopy(self.model.state_dict())
        original(self)

    monkeypatch.setattr(TransformerModule, "on_validation_epoch_end", record)
    results, name = train(small(trainer={"ema": 0.9})), "embedding.table.weight"
    best = weights(folder, "best")
    assert_equal(judged[state(folder, "best")["global_step"]], best)
    assert not torch.equal(best[name], weights(folder, part="trained_weights")[name])
    assert results["weights"] == "moving average, trainer.ema 0.9"


@pytest.mark.parametrize("first", [0.0, 0.9])
def test_the_average_begins_or_ends_when_a_run_is_resumed(small: Any, folder: Path, first: float) -> None:
    """Training continues from the trained weights, and an average that begins, from them."""
    train(small(trainer={"max_steps": 3, "ema": first}))
    train(small(trainer={"max_steps": 4, "ema": 0.9 - first, "save_every_n_steps": 1}), resume=True)
    for steps in (3, 4):
        train(small(run={"name": "straight"}, trainer={"max_steps": steps}), resume=steps == 4)
    trained_weights = weights(folder, part="state_dict" if first else "trained_weights")
    assert_equal(trained_weights, weights(folder.parents[1] / "straight/v0"))


def test_the_mean_of_the_last_checkpoints(finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = finished(trainer=KEPT)
    main(["average", str(folder.parent), "--last", "3"])
    assert "the mean of step_00000004.ckpt to step_00000006.ckpt, 3 files" in capsys.readouterr().out
    parts = [weights(folder, f"step_{step:08d}") for step in (4, 5, 6)]
    expected = {name: sum(part[name] for part in parts) / 3 for name in parts[0]}
    assert_close(weights(folder, "average"), expected)
    assert isinstance(minitx.load(folder / "average.ckpt", device="cpu").generate("3 1"), str)
    with pytest.raises(ConfigError, match=r"--last must be at least 2 and at most 6, .*keep_every_n.* got 7"):
        average(folder, 7)
    contents = state(folder)
    contents["state_dict"]["model.embedding.table.weight"] = torch.zeros(3)
    torch.save(contents, folder / "step_00000005.ckpt")
    with pytest.raises(ConfigError, match=r"step_00000005\.ckpt and step_00000006\.ckpt are of different models"):
        average(folder, 3)


def test_damaged_trained_weights_are_refused(finished: Any, small: Any) -> None:
    folder = finished(trainer={"ema": 0.9})
    contents = state(folder)
    contents["trained_weights"]["model.embedding.table.weight"] = torch.zeros(3)
    torch.save(contents, folder / "last.ckpt")
    with pytest.raises(ConfigError, match=r"trained_weights must have the shapes of the weights"):
        train(small(trainer={"ema": 0.9, "max_steps": 9}), resume=True)
