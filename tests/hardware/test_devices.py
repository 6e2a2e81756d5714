"""Which device is taken, what it can do and how it is waited for: simulated, so that no GPU is needed."""

import pytest
import torch

from minitx.hardware.devices import best_device, resolve_precision, training_device, widest_float
from minitx.hardware.machine import finished_at, machine


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("best", "named"), [("cpu", " cores, "), ("mps", "Apple GPU"), ("cuda", "some GPU")])
def test_auto_is_the_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch, best: str, named: str, native: bool) -> None:
    """And bf16 where the GPU computes it natively; on a CPU a race decides."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: best == "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: best == "mps")
    assert best_device() == training_device("auto") == training_device("gpu") == best
    assert training_device("cpu") == "cpu"
    assert named in machine()["device"]
    assert resolve_precision("auto", "auto") == ("bf16-mixed" if best == "cuda" and native else "32-true")
    assert resolve_precision("auto", "cpu") == "32-true"
    assert widest_float(best) == (torch.float32 if best == "mps" else torch.float64)


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_the_clock_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append("cuda"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    finished_at(device)
    assert waited == [device] * (device != "cpu")
