"""Names of the kernels that compute each attention of a model, recorded during a forward pass."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from minitx.interpret.recording import wrapped_attention
from minitx.nn.kernels import MaskAndBias, Operands, allowed_kernels, choose_kernel, fold, fused_dtype


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
    q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, softcap: float | None = None, **masking: Any
) -> str:
    """Name the kernel that scaled_dot_product_attention runs with these arguments, as in "fused: flash, with a mask".

    A fused kernel is named with torch's backend (flash, efficient and cudnn never materialize the [T, S] matrix, math
    does) and with its mask: none, the causal flag, or a tensor.
    """
    operands = Operands(q.size(-2), k.size(-2), v.size(-1), q.dtype, q.device, q.requires_grad)
    limits = MaskAndBias(**masking)
    kernel = choose_kernel(operands, limits, dropout, softcap)
    if kernel != "fused":
        return kernel
    mask, _, causal, _ = fold(operands, limits, kernel)
    compute_dtype = fused_dtype(operands)
    q, k, v = q.to(compute_dtype), k.to(compute_dtype), v.to(compute_dtype)
    name = q.device.type
    if name != "mps":  # which has only one kernel
        with allowed_kernels(operands, mask):
            backend = torch._fused_sdp_choice(q, k, v, mask, dropout, causal, enable_gqa=k.size(1) != q.size(1))
        name = SDPBackend(backend).name.removesuffix("_ATTENTION").lower()
    biased = mask is not None and bool((mask.isfinite() & (mask != 0)).any())
    mask_name = ", causal" if causal else ", with a bias" if biased else ", with a mask" if mask is not None else ""
    return f"fused: {name}{mask_name}" + (", in fp32" if compute_dtype != operands.dtype else "")
