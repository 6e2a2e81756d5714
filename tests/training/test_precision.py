"""trainer.precision: auto by hardware on a GPU, and by a race on a CPU."""

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from minitx.checkpoints import format as checkpoint
from minitx.hardware.devices import resolve_precision
from minitx.training import precision_race
from minitx.training.api import train_config
from minitx.training.precision_race import BF16, FP32, choose_precision, race
from minitx.training.resolve import resolve


def test_a_named_precision_is_taken_as_it_is() -> None:
    assert resolve_precision("64-true", "cpu") == "64-true"


@pytest.mark.parametrize(("native", "expected"), [(True, BF16), (False, FP32)])
def test_auto_on_a_gpu(monkeypatch: pytest.MonkeyPatch, native: bool, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    assert resolve_precision("auto", "auto") == expected
    assert resolve_precision("auto", "cpu") == FP32


def test_auto_on_an_apple_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_precision("auto", "auto") == FP32


class Machine:
    """A clock that the racers turn: a step in bf16 takes `bf16` seconds, one in fp32 a second."""

    def __init__(self, bf16: float) -> None:
        self.bf16, self.now, self.steps = bf16, 0.0, 0

    def __call__(self) -> float:
        return self.now

    def step(self, *_: Any) -> torch.Tensor:
        self.now += self.bf16 if torch.is_autocast_enabled("cpu") else 1.0
        self.steps += 1
        return torch.zeros((), requires_grad=True)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[float], Machine]:
    """machine(seconds): what a training step in bf16 takes here; nothing is remembered from other tests."""
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))

    def make(bf16: float) -> Machine:
        made = Machine(bf16)
        monkeypatch.setattr(precision_race, "cross_entropy", made.step)
        return made

    return make


AUTO = {"trainer": {"precision": "auto", "accelerator": "cpu"}}


@pytest.mark.parametrize(("bf16", "expected"), [(0.5, BF16), (0.94, BF16), (0.96, FP32), (1.0, FP32), (4.0, FP32)])
def test_the_faster_one_is_chosen_by_a_margin(small: Any, machine: Any, bf16: float, expected: str) -> None:
    clock = machine(bf16)
    precision, reason = choose_precision(resolve(small(**AUTO)), clock)
    assert precision == expected
    assert f"{1 / bf16:.2f}x the speed of fp32" in reason


def test_a_measurement_is_kept_for_its_machine_model_and_batch(
    small: Any, machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = machine(0.5)
    run = resolve(small(**AUTO))
    assert choose_precision(run, first)[0] == BF16
    other = machine(4.0)
    assert choose_precision(run, other)[0] == BF16
    assert choose_precision(resolve(small(run={"seed": 7}, **AUTO)), other)[0] == BF16
    assert not other.steps
    assert choose_precision(resolve(small(model={"d_model": 16}, **AUTO)), other)[0] == FP32
    assert choose_precision(resolve(small(data={"batch_size": 8}, **AUTO)), other)[0] == FP32
    monkeypatch.setattr(precision_race, "machine", lambda: {"device": "another", "torch": "2"})
    assert choose_precision(run, other)[0] == FP32
    for file in (tmp_path / "cache/precision").iterdir():
        assert float(json.loads(file.read_bytes())) in (2.0, 0.25)
        file.write_bytes(b"damaged")
    assert choose_precision(run, other)[0] == FP32


def test_a_measurement_changes_no_random_number(small: Any, machine: Any) -> None:
    run = resolve(small(**AUTO))
    before = torch.get_rng_state()
    choose_precision(run, machine(0.5))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_resumed_run_keeps_its_precision(small: Any, machine: Any) -> None:
    machine(0.5)
    train_config(small(**AUTO))
    config = small(trainer={**AUTO["trainer"], "max_steps": 8})
    clock = machine(4.0)
    run = resolve(config, resume=True)
    assert run.start is not None
    assert checkpoint.read(run.start.file)["precision"] in (BF16, FP32)
    assert choose_precision(run, clock)[0] == checkpoint.read(run.start.file)["precision"]
    assert not clock.steps


def test_racers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    ticks: Iterator[int] = count()
    monkeypatch.setattr(precision_race, "MAX_SECONDS", 0.0)
    best = race({name: lambda name=name: order.append(name) for name in "ab"}, lambda: next(ticks))  # type: ignore[misc]
    assert "".join(order) == "ab" * (1 + precision_race.MIN_TURNS)  # first without the clock
    assert best == {"a": 1, "b": 1}


def test_an_apple_gpu_has_no_float64(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    resolve(small(trainer={"precision": "64-true", "accelerator": "cpu"}))
    message = r"trainer\.precision 64-true needs trainer\.accelerator cpu here, got mps, which has no float64"
    with pytest.raises(ValueError, match=message):
        resolve(small(trainer={"precision": "64-true", "accelerator": "auto"}))
