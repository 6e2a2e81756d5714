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
from tests.training.interrupting import assert_equal, break_off, state, weights

KEPT = {"keep_every_n_steps": 1, "accumulate_grad_batches": 2, "max_steps": 4}
AVERAGED = {**KEPT, "ema": 0.3}


def test_the_average_is_its_definition_and_leaves_training_alone(small: Any, trained: Any) -> None:
    """After each optimizer step of two batches, from the fourth one on with the decay of the config."""
    learned = {"position": {"name": "learned", "max_len": 16}}  # tables that have several names, like the embedding's
    plain, averaged = trained(model=learned, trainer=KEPT), trained(model=learned, trainer=AVERAGED)
    expected = resolve(small(model=learned)).model.state_dict()
    for step in range(1, 5):
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
def test_the_average_begins_or_ends_when_a_run_is_resumed(small: Any, trained: Any, folder: Path, first: float) -> None:
    """Training continues from the trained weights, and an average that begins, from them."""
    break_off(small(trainer={"ema": first}), 5)
    train(small(trainer={"ema": 0.9 - first}), resume=True)
    assert_equal(weights(folder, part="state_dict" if first else "trained_weights"), weights(trained()))


@pytest.mark.parametrize(("first", "then"), [("32-true", "64-true"), ("64-true", "32-true")])
def test_an_average_of_another_precision_is_resumed(small: Any, folder: Path, first: str, then: str) -> None:
    break_off(small(trainer={"ema": 0.9, "precision": first}), 5)
    train(small(trainer={"ema": 0.9, "precision": then}), resume=True)
    assert {f"{weight.dtype}" for weight in weights(folder).values()} == {f"torch.float{then[:2]}"}


def test_the_mean_of_the_last_checkpoints(finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = finished(trainer=KEPT)
    main(["average", str(folder.parent), "--last", "3"])
    assert "the mean of step_00000002.ckpt to step_00000004.ckpt, 3 files" in capsys.readouterr().out
    parts = [weights(folder, f"step_{step:08d}") for step in (2, 3, 4)]
    assert_close(weights(folder, "average"), {name: sum(part[name] for part in parts) / 3 for name in parts[0]})
    assert isinstance(minitx.load(folder / "average.ckpt", device="cpu").generate("3 1"), str)
    message = r"--last must be at least 2 and at most .*got 5: there are 4, .*keep_every_n"
    with pytest.raises(ConfigError, match=message):
        average(folder, 5)
    assert all(average(folder, last) for last in (2, 4))
    contents = state(folder)
    contents["state_dict"]["model.embedding.table.weight"] = torch.zeros(3)
    for name in ("step_00000003", "last", "step_00000004"):  # as of another start from step 2: step 4 is out
        torch.save(contents | {"global_step": 3}, folder / f"{name}.ckpt")
    with pytest.raises(ConfigError, match=r"step_00000001\.ckpt and step_00000003\.ckpt are of different models"):
        average(folder, 3)
