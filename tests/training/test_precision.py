import pytest
import torch

from minitx.training import precision
from minitx.training.precision import resolve_precision


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
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: not native)
    assert resolve_precision("auto", "auto") == expected
    assert resolve_precision("auto", "cpu") != expected
