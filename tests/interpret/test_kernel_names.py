"""Named kernels are the ones that run: with every other kernel disabled, torch still computes the attention."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from minitx.interpret.kernel_names import attention_kernels, kernel_name
from minitx.models.transformers import Transformer
from minitx.nn import kernels, scaled_dot_product_attention

CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "causal": lambda: {"causal": True},
    "window": lambda: {"causal": True, "window": 3},
    "mask": lambda: {"mask": torch.rand(2, 1, 1, 6) > 0.3},
    "fixed bias": lambda: {"bias": torch.randn(1, 4, 6, 6)},
    "trained bias": lambda: {"bias": torch.randn(1, 4, 6, 6, requires_grad=True), "causal": True},
    "dropout": lambda: {"dropout": 0.5},
}


def qkv(dtype: torch.dtype = torch.float32, tokens: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(3, 2, 4, tokens, 8, dtype=dtype, requires_grad=True).unbind()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_the_named_kernel_is_the_one(case: str, dtype: torch.dtype) -> None:
    options, tensors = CASES[case](), qkv(dtype)
    name = kernel_name(*tensors, **options)
    (named,) = (
        each
        for each in SDPBackend.__members__.values()
        if name.startswith(f"fused: {each.name.removesuffix('_ATTENTION').lower()}")
    )
    with sdpa_kernel(named):
        scaled_dot_product_attention(*tensors, **options)
    others = {SDPBackend.FLASH_ATTENTION, SDPBackend.MATH} - {named}
    if named is SDPBackend.MATH:  # math can do all; the others cannot do this
        with sdpa_kernel([*others]), pytest.raises(RuntimeError):
            scaled_dot_product_attention(*tensors, **options)


def test_half_precision_on_a_cpu_says_what_it_calculates_in(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "fp32" in kernel_name(*qkv(torch.bfloat16))
    assert "fp32" not in kernel_name(*qkv())
    monkeypatch.setattr(kernels, "training_kernel", "fused")
    assert "fp32" not in kernel_name(*qkv(torch.bfloat16))


def test_what_no_kernel_can_is_computed_explicitly() -> None:
    assert kernel_name(*qkv(), softcap=20.0) == "explicit"


def test_every_attention_of_a_model_is_named_and_the_model_is_left_as_it_was(tiny) -> None:
    model: Transformer = tiny("encoder_decoder", "alibi")
    ids = torch.randint(6, 11, (2, 5))
    names = attention_kernels(model, {"src_ids": ids, "tgt_ids": ids})
    assert names.keys() == {
        f"{stack}.layers.{layer}.{kind}"
        for stack, kind in (("encoder", "self_attn"), ("decoder", "self_attn"), ("decoder", "cross_attn"))
        for layer in range(2)
    }
    assert "with a bias" in names["encoder.layers.0.self_attn"]
    assert "with a bias" not in names["decoder.layers.0.cross_attn"]
    assert model.encoder.layers[0].self_attn.attention is scaled_dot_product_attention  # type: ignore[union-attr]
