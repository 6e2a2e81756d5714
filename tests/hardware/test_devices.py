"""Which device is taken, what it can do and how it is waited for: simulated, so that no GPU is needed."""

import pytest
import torch
from torch import Tensor

from minitx.hardware.devices import best_device, moved, training_device, widest_float
from minitx.hardware.machine import finished_at, machine


@pytest.mark.parametrize(("best", "named"), [("cpu", " cores, "), ("mps", "Apple GPU"), ("cuda", "some GPU")])
def test_auto_is_the_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch, best: str, named: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: best == "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: best == "mps")
    assert best_device() == training_device("auto") == training_device("gpu") == best
    assert training_device("cpu") == "cpu"
    assert named in machine()["device"]


def test_only_an_apple_gpu_lacks_float64() -> None:
    assert {widest_float(device) for device in ("cpu", "cuda:1", "meta")} == {torch.float64}
    assert widest_float("mps") == torch.float32


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_the_clock_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append("cuda"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    finished_at(device)
    assert waited == [device] * (device != "cpu")


def test_what_moves_to_a_cuda_device_is_pinned_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: asked.append("pinned") or tensor)
    monkeypatch.setattr(Tensor, "to", lambda tensor, device, non_blocking: asked.append((str(device), non_blocking)))
    for device in ("cpu", "mps", "cuda"):
        moved(torch.arange(3), device)
    assert asked == [("cpu", False), ("mps", False), "pinned", ("cuda", True)]
