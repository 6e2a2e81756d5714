"""Which device is taken, what it can do and how it is waited for: simulated, so that no GPU is needed."""

import pytest
import torch

from minitx.hardware.devices import best_device, training_device, widest_float
from minitx.hardware.machine import finished_at, machine


@pytest.mark.parametrize(("best", "named"), [("cpu", " cores, "), ("mps", "Apple GPU"), ("cuda", "some GPU")])
def test_auto_is_the_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch, best: str, named: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: best == "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: best == "mps")
    assert best_device() == training_device("auto") == training_device("gpu") == best
    assert training_device("cpu") == "cpu"
    assert named in machine()["device"]
    assert widest_float(best) == (torch.float32 if best == "mps" else torch.float64)


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_the_clock_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append("cuda"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    finished_at(device)
    assert waited == [device] * (device != "cpu")
