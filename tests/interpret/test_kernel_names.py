"""Named kernels are the ones that run: with every other kernel disabled, torch still computes the attention."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from minitx.interpret.kernel_names import attention_kernels, kernel_name
from minitx.nn import kernels, scaled_dot_product_attention
from small_models import build_tiny, untouched

BIAS = torch.arange(4 * 36).view(1, 4, 6, 6) / 100


def qkv(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(3, 2, 4, 6, 8, dtype=dtype, requires_grad=True).unbind()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("options", "masking"), [
    ({}, []), ({"dropout": 0.5}, []), ({"causal": True}, ["causal"]),
    ({"causal": True, "window": 3}, ["with a mask"]),
    ({"mask": torch.arange(6).view(1, 1, 1, 6) < 4}, ["with a mask"]),
    ({"bias": BIAS}, ["with a bias"]), ({"bias": BIAS.clone().requires_grad_(), "causal": True}, ["with a bias"]),
])  # fmt: skip
def test_the_named_kernel_is_the_one_that_runs(options: dict[str, Any], masking: list[str], dtype: torch.dtype) -> None:
    tensors = qkv(dtype)
    kernel, *about = kernel_name(*tensors, **options).split(", ")
    assert about == masking + ["in fp32"] * (dtype == torch.bfloat16)
    backend = {"fused: flash": SDPBackend.FLASH_ATTENTION, "fused: math": SDPBackend.MATH}[kernel]
    with sdpa_kernel(backend):
        scaled_dot_product_attention(*tensors, **options)
    if backend is SDPBackend.MATH:  # which can do all; the other one cannot do this
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError):
            scaled_dot_product_attention(*tensors, **options)


def test_kernels_that_a_run_selects_and_the_explicit_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "training_kernel", "fused")
    assert "fp32" not in kernel_name(*qkv(torch.bfloat16))
    assert kernel_name(*qkv(), softcap=20.0) == "explicit"


def test_every_attention_of_a_model_is_named_and_the_model_is_left_as_it_was() -> None:
    model = build_tiny("encoder_decoder", "alibi")
    names = attention_kernels(model, dict.fromkeys(("src_ids", "tgt_ids"), torch.randint(6, 11, (2, 5))))
    paths = ("encoder.layers.{}.self_attn", "decoder.layers.{}.self_attn", "decoder.layers.{}.cross_attn")
    assert names.keys() == {path.format(layer) for path in paths for layer in range(2)}
    assert {path for path, name in names.items() if "with a bias" in name} == {path for path in names if "self" in path}
    assert untouched(model)
