"""Names of the kernels that compute each attention of a model, recorded during a forward pass.

Legend: B batch, T queries, S keys, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from minitx.interpret.recording import wrapped_attention
from minitx.nn.kernels import MaskAndBias, allowed_kernels, choose_kernel, fold, fused_dtype


def attention_kernels(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, str]:
    """Run the model once on inputs, keyword arguments of its forward, and name each attention's kernel by its path."""
    names: dict[str, str] = {}

    def named(path: str, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        names[path] = kernel_name(*args, **kwargs)
        return inner(*args, **kwargs)

    with wrapped_attention(model, named):
        model(**inputs)
    return names


def kernel_name(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
) -> str:
    """Name the kernel that scaled_dot_product_attention runs with these arguments, as in "fused: flash, with a mask".

    A fused kernel is named with torch's backend (flash, efficient and cudnn never materialize the [T, S] matrix, math
    does) and with its mask: none, the causal flag, or a tensor.
    """
    dtype = q.dtype
    mask_and_bias, size = MaskAndBias(mask, bias, causal, window), (q.size(-2), k.size(-2))
    kernel = choose_kernel(q, *size, q.size(-1), mask_and_bias, dropout, softcap)
    if kernel != "fused":
        return kernel
    mask, _, causal, _ = fold(mask_and_bias, kernel, *size, q.dtype, q.device)
    compute_dtype = fused_dtype(q.dtype, q.device, *size)
    q, k, v = q.to(compute_dtype), k.to(compute_dtype), v.to(compute_dtype)
    name = q.device.type
    if name != "mps":  # which has one kernel and no choice
        with allowed_kernels(mask):
            backend = torch._fused_sdp_choice(q, k, v, mask, dropout, causal, enable_gqa=k.size(1) != q.size(1))
        name = SDPBackend(backend).name.removesuffix("_ATTENTION").lower()
    biased = mask is not None and bool((mask.isfinite() & (mask != 0)).any())
    mask_name = ", causal" if causal else ", with a bias" if biased else ", with a mask" if mask is not None else ""
    return f"fused: {name}{mask_name}" + (", in fp32" if compute_dtype != dtype else "")
