"""On a GPU: each of torch's kernels, and flex attention, beside the explicit softmax in fp64."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from minitx.interpret.kernel_names import kernel_name
from minitx.nn import scaled_dot_product_attention
from minitx.nn.flex import flex_attention
from small_models import keep_of

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]
LENGTHS = (64, 128, 192, 320)
"""Those with T % 128 == 64 are where cuDNN's backward with a mask is known to have given NaN (pytorch 196678)."""


def inputs(tokens: int, dtype: torch.dtype, kv_heads: int = 4) -> list[Tensor]:
    torch.manual_seed(tokens)
    shapes = [(2, 4, tokens, 64), (2, kv_heads, tokens, 64), (2, kv_heads, tokens, 64)]
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]


def agree(out: Tensor, parts: list[Tensor], *, mask: Tensor | None, causal: bool, tolerance: float, **rules) -> None:
    """Output and gradients equal those of the explicit softmax in fp64, also of a trained bias [1, T, T, H]; rows
    without a key are zero."""
    exact = [part.detach().double().requires_grad_() for part in parts]
    bias = exact[3].permute(0, 3, 1, 2) if len(exact) > 3 else None
    rules |= {"mask": mask, "causal": causal, "bias": bias, "return_weights": True}
    expected = scaled_dot_product_attention(*exact[:3], **rules)[0]
    weights = torch.randn(expected.shape, device="cuda", dtype=torch.float64)
    (expected * weights).sum().backward()
    (out.double() * weights).sum().backward()
    for ours, theirs in [(out, expected), *((part.grad, more.grad) for part, more in zip(parts, exact, strict=True))]:
        assert bool(ours.isfinite().all())
        assert float((ours.double() - theirs).norm() / theirs.norm().clamp(min=1e-9)) < tolerance
    if mask is not None:
        assert not out[1].any()


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("rule", ["none", "causal", "padding", "padding and causal"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("backend", [*BACKENDS, None], ids=str)
def test_a_kernel_of_torch_equals_the_formula(backend: Any, dtype: torch.dtype, rule: str, tokens: int) -> None:
    parts = inputs(tokens, dtype)
    keep = keep_of(2 * tokens // 3, 0, width=tokens)  # row 1 has no real key at all
    mask = keep[:, None, None].cuda() if "padding" in rule else None
    with nullcontext() if backend is None else sdpa_kernel(backend):
        try:
            out = scaled_dot_product_attention(*parts, mask=mask, causal="causal" in rule)
        except RuntimeError as error:
            if "No available kernel" in str(error) or "No viable backend" in str(error):
                pytest.skip(f"{backend} does not take this")
            raise
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    agree(out, parts, mask=mask, causal="causal" in rule, tolerance=tolerance, window=None, softcap=None)


@pytest.mark.parametrize("tokens", [37, *LENGTHS])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float32, 1e-4)], ids=["bf16", "fp32"])
def test_a_trained_bias_equals_the_formula(dtype: torch.dtype, tolerance: float, tokens: int) -> None:
    """A bias in the layout of T5's, where heads are neighbours in memory; by a kernel that never holds all scores."""
    parts = [*inputs(tokens, dtype), torch.randn(1, tokens, tokens, 4, device="cuda", requires_grad=True)]
    bias, limits = parts[3].permute(0, 3, 1, 2), {"mask": None, "causal": True, "window": None}
    assert "efficient" in kernel_name(*parts[:3], bias=bias, **limits)
    out = scaled_dot_product_attention(*parts[:3], bias=bias, **limits)
    agree(out, parts, tolerance=tolerance, **limits)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [65, 385])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
def test_flex_attention_equals_the_formula(causal: bool, window: int, softcap: float | None, kv_heads: int) -> None:
    parts = inputs(1024, torch.float32, kv_heads)
    out = flex_attention(*parts, causal=causal, window=window, softcap=softcap)
    agree(out, parts, mask=None, causal=causal, tolerance=5e-3, window=window, softcap=softcap)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_gradients_are_finite_where_scores_are_low(tokens: int, dtype: torch.dtype) -> None:
    """So low that the exponential of their negative overflows in fp32."""
    q, k, v = (part.detach() for part in inputs(tokens, dtype))
    q[..., 0], k[..., 0] = 1.0, -120 * math.sqrt(64)
    q, k, v = (part.requires_grad_() for part in (q, k, v))
    keep = torch.ones(2, 1, 1, tokens, dtype=torch.bool, device="cuda")
    out = scaled_dot_product_attention(q, k, v, mask=keep, causal=True)
    for gradient in torch.autograd.grad(out, (q, k, v), torch.randn_like(out)):
        assert gradient.isfinite().all()
