"""Losses and gradients that are not finite change no weight, and the run names their origin."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from minitx.config.errors import RunFailed
from minitx.config.schema import OptimizerConfig
from minitx.nn import FeedForward
from minitx.training.api import train_config as train
from minitx.training.module import TransformerModule
from minitx.training.optim import build_optimizer
from minitx.training.resilience.divergence import FiniteSteps
from tests.training.interrupting import assert_equal, run_script, scalars, state

NAN, INF = float("nan"), float("inf")


def break_at(patch: pytest.MonkeyPatch, steps: set[int], how: str = "forward", rank: int = 0) -> None:
    """In these steps a part outputs NaN, its backward does or is too large for the norm, or the loss overflows."""
    reseed, ffn, summed = TransformerModule.reseed, FeedForward.forward, TransformerModule.summed_loss
    broken: dict[nn.Module, str] = {}
    factor = {"backward": INF, "norm": 1e30}.get(how)

    def begin(self: TransformerModule, batch: int) -> None:
        step, later = divmod(batch, self.trainer.accumulate_grad_batches)  # in later batches, it outputs NaN
        broken.clear()
        if step in steps and self.global_rank == rank:
            broken[self.model.encoder.layers[0].ffn] = "forward" if later else how
        reseed(self, batch)

    def forward(self: FeedForward, x: Tensor) -> Tensor:
        out = ffn(self, x)
        if broken.get(self) == "forward":
            return out * NAN
        if self in broken and out.requires_grad and factor:
            out.register_hook(lambda gradient: gradient * factor)
        if broken.get(self) == "weight":
            return out + (0.0 * next(self.parameters()).sum()).sqrt()
        return out

    if how == "loss":
        patch.setattr(TransformerModule, "summed_loss", lambda *given: summed(*given) * (INF if broken else 1.0))
    patch.setattr(TransformerModule, "reseed", begin)
    patch.setattr(FeedForward, "forward", forward)


LAYER = r"output of encoder\.layers\.0\.ffn \(FeedForward\)"
FIGURES = r"loss {}\S*, learning rate 0.0025, gradient norm {}; "
DIVERGED = {
    "forward": FIGURES.format("nan", "nan") + f"it first shows in the {LAYER}",
    "backward": FIGURES.format(r"\d", "nan") + f"it first shows in the backward, in the gradient of the {LAYER}",
    "weight": FIGURES.format(r"\d", "nan")
    + r"it first shows in the backward, in the gradient of encoder\.layers\.0\.ffn\.\S+",
    "loss": FIGURES.format("inf", "nan") + "all layers' outputs are finite, but the loss is not",
    "norm": FIGURES.format(r"\d", "inf") + "the replayed step is finite: the norm of its gradients overflows, or .*",
}


@pytest.mark.parametrize(("batches", "how"), [(3, "forward"), (2, "backward"), (3, "loss"), (1, "norm"), (2, "weight")])
def test_a_run_that_diverges_names_the_origin_and_keeps_its_weights(
    small: Any, folder: Path, monkeypatch: Any, batches: int, how: str
) -> None:
    break_at(monkeypatch, {4}, how)
    precision = "bf16-mixed" if how == "forward" else "32-true"
    trainer = {"precision": precision, "accumulate_grad_batches": batches, "save_every_n_steps": 1}
    config = small(model={"n_layers": 2, "dropout": 0.1}, trainer=trainer)
    with pytest.raises(RunFailed, match=rf"step 5: {DIVERGED[how]}\. The last.ckpt of step 4 is kept") as failed:
        train(config)
    for key in ("optimizer.lr", "warmup_steps", "gradient_clip_val", "trainer.skip_nonfinite_steps true"):
        assert key in str(failed.value)
    assert state(folder)["global_step"] == 4
    for name in ("last", "best"):
        assert all(weight.isfinite().all() for weight in state(folder, name)["state_dict"].values())
    assert not (folder / "results.json").exists()
    monkeypatch.undo()
    assert train(config, resume=True)["steps"] == 6


@pytest.mark.parametrize(
    ("optimizer", "precision", "how"), [("adamw", "32-true", "backward"), ("muon", "bf16-mixed", "forward")]
)
def test_skipped_steps_change_nothing_and_are_counted(
    small: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, optimizer: str, precision: str, how: str
) -> None:
    """A run that skips its last steps ends with the weights and the states that it had before them, and is resumed."""
    trainer = {"precision": precision, "skip_nonfinite_steps": True, "max_steps": 8, "save_every_n_steps": 3}
    break_at(monkeypatch, {1, 3, 4, 5, 6, 7, 9}, how)
    assert train(small(trainer=trainer, optimizer={"name": optimizer}))["skipped_steps"] == 6
    assert "6 steps skipped" in capsys.readouterr().out
    assert scalars(folder)["training/skipped_steps"] == [(2, 1.0), (4, 2.0), (6, 4.0), (8, 6.0)]
    last, best = (state(folder, name) for name in ("last", "best"))
    assert (last["skipped_steps"], best["global_step"]) == (6, 3)
    assert_equal(last["state_dict"], best["state_dict"])
    adamw = last["optimizer_states"][0].get("parts", last["optimizer_states"])[-1]
    assert {int(each["step"]) for each in adamw["state"].values()} == {2}, "the first and the third were taken"
    longer = small(trainer={**trainer, "max_steps": 10}, optimizer={"name": optimizer})
    assert train(longer, resume=True)["skipped_steps"] == 7


@pytest.mark.parametrize(("log", "validation"), [(3, 8), (8, 3)])
def test_counters_on_a_device_are_read_before_a_log_and_a_validation(
    small: Any, monkeypatch: Any, log: int, validation: int
) -> None:
    trainer, steps, before = {"max_steps": 8, "save_every_n_steps": 8}, list[int](), FiniteSteps.before_step

    def deferred(self: FiniteSteps, optimizer: Any, norm: Tensor, step: int, scaler: Any) -> None:
        before(self, optimizer, norm, step, scaler)
        self.deferred = True
        steps.append(step)

    monkeypatch.setattr(FiniteSteps, "before_step", deferred)
    break_at(monkeypatch, {0})
    with pytest.raises(RunFailed, match=r"diverged at step 1: .* No weight has been changed yet: check the data"):
        train(small(trainer={**trainer, "val_every_n_steps": validation}, log={"every_n_steps": log}))
    assert steps == [0, 1, 2]


def test_a_run_that_has_taken_no_step_is_resumed(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    break_at(monkeypatch, {0, 1})
    trainer = {"skip_nonfinite_steps": True, "max_steps": 2}
    assert train(small(trainer=trainer))["skipped_steps"] == 2
    assert train(small(trainer={**trainer, "max_steps": 4}), resume=True)["skipped_steps"] == 2


def test_too_many_skipped_in_a_row_end_the_run(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitx.training.resilience.divergence.MAX_SKIPPED_IN_A_ROW", 3)
    break_at(monkeypatch, {1, 4, 5, 6, 7})
    message = r"diverged at step 5 \(and 3 more after it, which were skipped\): .*norm nan;(?!.*skip_nonfinite_steps)"
    for resume in (False, True):  # after step 6
        with pytest.raises(RunFailed, match=message):
            train(small(trainer={"skip_nonfinite_steps": True, "max_steps": 9}), resume)


def test_a_model_that_computes_nan_is_logged_and_saved(small: Any, folder: Path) -> None:
    """Its outputs cannot be generated; TensorBoard lacks them, and the run keeps what it had."""
    optimizer = {"lr": 1e30, "schedule": {"warmup_steps": 0}}
    results = train(small(trainer={"skip_nonfinite_steps": True}, optimizer=optimizer, log={"attention": {}}))
    assert results["skipped_steps"] == 5
    assert math.isnan(results["loss"])
    assert state(folder, "last")["global_step"] == 6


@pytest.mark.parametrize(("trainer", "step"), [
    ({"save_every_n_steps": 2}, 4), ({}, 6), ({"val_every_n_steps": 3, "skip_nonfinite_steps": True}, 3)
])  # fmt: skip
def test_nonfinite_weights_are_not_saved(small: Any, tmp_path: Path, monkeypatch: Any, trainer: Any, step: int) -> None:
    """Nor at a validation or the end. No loss shows them: the step before, whose gradient was finite, made them."""
    original, steps = TransformerModule.optimizer_step, itertools.count(1)

    def spoil(self: TransformerModule, *given: Any, **more: Any) -> None:
        original(self, *given, **more)
        if next(steps) == step:
            self.model.embedding.table.weight.data[0, 0] = float("inf")

    monkeypatch.setattr(TransformerModule, "optimizer_step", spoil)
    message = rf"at step {step}: .*norm (?!0;)\S+; the weights embedding\.table\.weight are not finite(?!.*skip_nonf)"
    with pytest.raises(RunFailed, match=message):
        train(small(trainer={"save_every_n_steps": 100, **trainer}))
    saved = [state(file.parent, file.stem) for file in tmp_path.glob("runs/small/v0/*.ckpt")]
    assert all(weight.isfinite().all() for contents in saved for weight in contents["state_dict"].values())


def snapshot(layer: nn.Module, optimizer: Any) -> list[Tensor]:
    states = [state for part in getattr(optimizer, "parts", [optimizer]) for state in part.state.values()]
    tensors = [*layer.parameters(), *(tensor for state in states for tensor in state.values())]
    return [tensor.detach().clone() for tensor in tensors]


STEPS = [(1.0, 0), (2.0, 0), (NAN, 0), (1.0, 0), (INF, 0), (NAN, 0), (3.0, 0), (1.0, 1), (1.0, 0)]
"""The size of the gradient, and how many losses are not finite."""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_step_is_taken_or_changes_neither_weights_nor_states(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool, scaled: bool, skip: bool, optimizer: Any
) -> None:
    """On a GPU, the optimizer decides on the device. In fp16, a scaler skips the steps whose gradient overflows."""
    if on_gpu:
        monkeypatch.setattr(Tensor, "is_cuda", True)
    layer = nn.Linear(4, 3)
    stepping = build_optimizer(layer, OptimizerConfig(name=optimizer, lr=0.1), fused=on_gpu or not scaled)
    scaler = GradScaler("cpu", init_scale=1024.0) if scaled else None
    steps, skipped, row, overflows, shown = FiniteSteps(skip), 0, 0, 0, torch.tensor(0.0)
    for step, (size, losses) in enumerate([(NAN, 1), *STEPS] if skip else STEPS):  # at first there is no momentum
        before = snapshot(layer, stepping)
        for weight in layer.parameters():
            weight.grad = torch.randn_like(weight) * size * (scaler.get_scale() if scaler else 1.0)
        if scaler:
            scaler.scale(torch.ones(1))
            scaler.unscale_(stepping)
        steps.add_losses(torch.tensor(losses))
        steps.add_losses(torch.tensor(0))
        norm = nn.utils.get_total_norm([weight.grad for weight in layer.parameters()])
        steps.before_step(stepping, norm, step, scaler)
        scaler.step(stepping) if scaler else stepping.step()
        scaler.update() if scaler else None
        overflow = not math.isfinite(size)
        bad = losses > 0 or (overflow and not scaled) or (row > 0 and not skip)
        skipped, row, overflows = skipped + bad, (row + 1) * bad, (overflows + 1) * (overflow and scaled)
        taken = not (bad or overflow)
        assert all(torch.equal(*pair) != taken for pair in zip(before, snapshot(layer, stepping), strict=False)), step
        assert (int(steps.skipped), int(steps.in_a_row), int(steps.overflows)) == (skipped, row, overflows), step
        assert row != 1 or int(steps.first) == step
        shown = norm if row == 1 else shown
        assert torch.equal(shown.isnan(), steps.norm.isnan()), "of the first step in a row"
    assert steps.deferred == on_gpu
    assert scaler is None or scaler.get_scale() < 1024.0


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_processes_decide_together(small: Any, tmp_path: Path, strategy: str) -> None:
    """What is not finite in the second process alone stops both, or is skipped by both."""
    prepare = "from tests.training.resilience.test_divergence import break_at; break_at(patch, {2, 4}, rank=1)"
    for skip in (False, True):
        config = small(trainer={"strategy": strategy, "devices": 2, "skip_nonfinite_steps": skip})
        ran = run_script(tmp_path, prepare, config)
        assert ran.returncode == (0 if skip else 1), ran.stderr
        assert state(tmp_path / f"runs/small/v{int(skip)}")["global_step"] == (6 if skip else 2)
        if skip:
            assert "2 steps skipped" in ran.stdout
        else:
            assert ran.stderr.count("minitx: training diverged at step 3") == 1, ran.stderr
            assert "output of encoder.layers.0.ffn (FeedForward), in process 1" in ran.stderr
            assert "Traceback" not in ran.stderr
