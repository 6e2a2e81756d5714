from typing import Any

import pytest
import torch

from minitx.hardware.devices import resolve_precision
from minitx.training.resolve import resolve


def test_a_named_precision_is_taken_as_it_is() -> None:
    assert resolve_precision("64-true", "cpu") == "64-true"


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16-mixed"), (False, "32-true")])
def test_auto_on_a_cpu(monkeypatch: pytest.MonkeyPatch, native: bool, expected: str) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": native})
    assert resolve_precision("auto", "cpu") == expected


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16-mixed"), (False, "32-true")])
def test_auto_on_a_gpu(monkeypatch: pytest.MonkeyPatch, native: bool, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": not native})
    assert resolve_precision("auto", "auto") == expected
    assert resolve_precision("auto", "cpu") != expected


def test_auto_on_an_apple_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"bf16": True})
    assert resolve_precision("auto", "auto") == "32-true"
    assert resolve_precision("auto", "cpu") == "bf16-mixed"


def test_an_apple_gpu_has_no_float64(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    resolve(small(trainer={"precision": "64-true", "accelerator": "cpu"}))
    message = r"trainer\.precision 64-true needs trainer\.accelerator cpu here, got mps, which has no float64"
    with pytest.raises(ValueError, match=message):
        resolve(small(trainer={"precision": "64-true", "accelerator": "auto"}))
