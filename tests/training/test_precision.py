"""trainer.precision on a CPU: auto is decided by a race, which also selects the attention kernel."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minitx.hardware import devices, races
from minitx.hardware.races import AGREEING_MEASUREMENTS, decide, race
from minitx.nn import kernels
from minitx.training.api import train_config
from minitx.training.choices import numerics
from minitx.training.choices.numerics import BF16, FP32, Numerics, choose_numerics
from minitx.training.resolve import resolve
from tests.training.interrupting import assert_equal, break_off, weights


class Machine:
    """Clocks that training steps advance: each precision or attention kernel takes its own seconds of CPU time, 0.25 of
    them in the forward and the rest in the backward. On a busy machine other programs run for a random time in each."""

    def __init__(self, fp32: float = 1.0, bf16: float = 1.0, busy: bool = False, **kernels: float) -> None:
        self.seconds = {FP32: fp32, "fused fp32": bf16, "fused": 9.0, "explicit": 9.0, **kernels}
        self.wall, self.cpu, self.steps, self.threads = 0.0, 0.0, 0, set[int]()
        self.others = random.Random(1) if busy else None

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu

    def step(self, *_: Any) -> torch.Tensor:
        seconds = self.seconds[kernels.training_kernel if torch.is_autocast_enabled("cpu") else FP32]
        self.compute(0.25)
        self.steps += 1
        self.threads.add(torch.get_num_threads())
        loss = torch.zeros((), requires_grad=True)
        loss.register_hook(lambda _: self.compute(seconds - 0.25))
        return loss

    def compute(self, seconds: float) -> None:
        self.cpu += seconds
        self.wall += seconds + (self.others.uniform(0, 20) if self.others else 0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """machine(...) replaces clocks and steps by those of a Machine."""

    def make(**options: Any) -> Machine:
        made = Machine(**options)
        monkeypatch.setattr(numerics, "race", race)
        monkeypatch.setattr(races, "time", made)
        monkeypatch.setattr(numerics, "summed_loss", made.step)
        return made

    return make


AUTO = {"trainer": {"precision": "auto", "accelerator": "cpu"}}


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(("bf16", "expected"), [(0.94, BF16), (0.96, FP32), (4.0, FP32)])
def test_the_faster_one_is_chosen_by_a_margin(small: Any, machine: Any, bf16: float, expected: str, busy: bool) -> None:
    """On a busy machine by the CPU time of one thread. A measurement changes no random number."""
    clock, before, run = machine(bf16=bf16, busy=busy), torch.get_num_threads(), resolve(small(**AUTO))
    random_state = torch.get_rng_state()
    (precision, _), reason = choose_numerics(run)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert (kernels.training_kernel, precision) == ("fused fp32", expected)
    assert f"{1 / bf16:.2f}x the speed of fp32" in reason
    assert (1 in clock.threads - {before}) is (busy and before > 1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("precision", "kernel", "expected"), [
    *(("auto", kernel, BF16) for kernel in kernels.CPU_HALF_KERNELS),
    (BF16, "fused", BF16),
    ("bf16-true", "fused", "bf16-true"),
    ("16-mixed", "fused", BF16),  # Lightning trains 16-mixed on a CPU so
    (FP32, "fused fp32", FP32),  # not measured, nor is the next
    ("64-true", "fused fp32", "64-true"),
])  # fmt: skip
def test_the_fastest_kernel_is_chosen(small: Any, machine: Any, precision: str, kernel: str, expected: str) -> None:
    clock = machine(bf16=0.9, **{kernel: 0.8})
    run = resolve(small(trainer={**AUTO["trainer"], "precision": precision, "devices": "1"}))
    assert choose_numerics(run)[0] == (expected, kernel)
    assert bool(clock.steps) == (expected not in (FP32, "64-true"))


@pytest.mark.parametrize(("measurements", "expected"), [
    ([(1.0, 0.96), (1.0, 0.94), (1.0, 1.0)], "abb"),  # 5 % is the margin
    ([(1.0, 0.9), (0.86, 0.9), (0.85, 0.9)], "bba"),  # in both directions
    ([(4.0, 1.0), (1.0, 4.0), (0.9, 1.0), (0.9, 1.0)], "bbaa"),  # what a busy machine made slower is corrected
    ([(1.0, 0.9)] * AGREEING_MEASUREMENTS + [(0.1, 0.9)], "bbb-"),  # and what was repeated is kept
    ([(1.0, 0.5), (0.7, 1.0)] + [(1.0, 0.5)] * AGREEING_MEASUREMENTS + [(0.1, 0.5)], "bbbbb-"),  # in a row
])  # fmt: skip
def test_a_choice_changes_only_by_a_margin(measurements: Any, expected: str) -> None:
    with pytest.raises(ZeroDivisionError):  # a failed measurement is not kept
        decide(["subject"], ("a", "b"), lambda: {"a": 1 / 0})
    found = ""
    for a, b in measurements:
        measured: list[dict[str, float]] = []
        chosen, _ = decide(["subject"], ("a", "b"), lambda: measured.append({"a": a, "b": b}) or measured[0])  # noqa: B023
        found += chosen if measured else "-"
    assert found == expected


def test_measurements_are_kept_for_their_machine_model_and_batch(
    small: Any, machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = resolve(small(**AUTO))

    def precision(**sections: Any) -> str:
        return choose_numerics(resolve(small(**AUTO, **sections)) if sections else run)[0].precision

    machine(bf16=0.5)
    assert [precision() for _ in range(AGREEING_MEASUREMENTS)] == [BF16] * AGREEING_MEASUREMENTS
    other = machine(bf16=4.0)
    assert precision() == precision(run={"seed": 7}) == BF16
    assert not other.steps
    assert precision(model={"d_model": 16}) == precision(data={"batch_size": 8}) == FP32
    monkeypatch.setattr(races, "machine", lambda: {"device": "another", "torch": "2"})
    assert precision() == FP32
    files = [*(tmp_path / "cache/races").iterdir()]
    assert len(files) == 4
    for file in files:
        assert json.loads(file.read_bytes())["seconds"]["fp32"] == 1.0
        for damage in (b"damaged", b"[]", b'{"chosen": "c", "agreeing": 9, "seconds": {}}'):
            file.write_bytes(damage)
            assert precision() == FP32


def test_a_resumed_run_keeps_precision_and_kernel(small: Any, machine: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """And so its weights are those of an uninterrupted run. In earlier versions there was one kernel."""
    machine(bf16=0.9, explicit=0.5)
    train_config(small(run={"name": "whole"}, **AUTO))
    break_off(small(run={"name": "parts"}, **AUTO), 5)
    clock = machine(bf16=4.0, explicit=9.0)
    config, used = small(run={"name": "parts"}, **AUTO), []
    run = resolve(config, resume=True)
    assert choose_numerics(run) == (Numerics(BF16, "explicit"), "")
    del run.start.contents["attention_kernel"]  # type: ignore[union-attr]
    run.start.contents["precision"] = "16-mixed"  # type: ignore[union-attr]
    assert choose_numerics(run)[0] == Numerics(BF16, "fused fp32"), "Lightning's for a run of a GPU"
    chosen = kernels.choose_kernel
    monkeypatch.setattr(kernels, "choose_kernel", lambda *given: used.append(chosen(*given)) or used[-1])
    train_config(config, resume=True)
    assert "explicit" in used
    assert not clock.steps
    assert_equal(weights(tmp_path / "runs/whole/v0"), weights(tmp_path / "runs/parts/v0"))


def test_racers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes twice as long as another, at its best, is soon out of the race."""
    clock, order = Machine(), list[str]()
    monkeypatch.setattr(races, "time", clock)

    def run(name: str, seconds: float) -> None:
        order.append(name)
        clock.wall, clock.cpu = clock.wall + seconds, clock.cpu + seconds

    best = race({"a": lambda: run("a", 0.05), "b": lambda: run("b", 0.04), "c": lambda: run("c", 0.09)}, 0.4)
    assert "".join(order) == "abc" * (1 + races.MIN_TURNS) + "ab"  # first without the clock
    assert best == pytest.approx({"a": 0.05, "b": 0.04, "c": 0.09})


def test_an_apple_gpu_has_no_float64(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "best_device", lambda: "mps")
    resolve(small(trainer={"precision": "64-true", "accelerator": "cpu"}))
    message = r"trainer\.precision 64-true needs trainer\.accelerator cpu here: mps has no float64"
    with pytest.raises(ValueError, match=message):
        resolve(small(trainer={"precision": "64-true", "accelerator": "auto"}))
