"""Which code computes each attention of a model: told by a forward, not guessed from the config.

Legend: B batch, T queries, S keys, H heads.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from minitx.inspection.recording import wrapped_attention
from minitx.nn.attention import MASKED_KERNELS, choose_kernel, kernel_inputs, kernel_mask
from minitx.nn.multihead import AttentionFunction


def attention_kernels(model: nn.Module, inputs: tuple[Tensor | None, ...]) -> dict[str, str]:
    """Run the model once on inputs, the arguments of its forward, and note what computes each attention.

    Returns:
        Module path to a line such as "fused: flash, with a mask"; see kernel_name.
    """
    names: dict[str, str] = {}

    def witness(path: str, inner: AttentionFunction) -> AttentionFunction:
        def attend(*args: Any, **kwargs: Any) -> Any:
            names[path] = kernel_name(*args, **kwargs)
            return inner(*args, **kwargs)

        return attend

    with wrapped_attention(model, witness):
        model(*inputs)
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
    """What scaled_dot_product_attention does with these arguments.

    fused tells which of torch's kernels: flash, efficient and cudnn never hold the [T, S] matrix, math does. Behind it
    stands what the kernel is told of masks: nothing, the word causal, or a tensor.
    """
    kernel = choose_kernel(q, k, mask, bias, dropout, causal=causal, window=window, softcap=softcap)
    if kernel != "fused":
        return kernel
    told, by_word = kernel_mask(q, k, mask, bias, causal=causal, window=window)
    dtype = q.dtype
    q, k, v, told = kernel_inputs(q, k, v, told)
    calculated = "" if q.dtype == dtype else ", in fp32"
    with sdpa_kernel(MASKED_KERNELS) if told is not None and q.device.type == "cuda" else nullcontext():
        backend = torch._fused_sdp_choice(q, k, v, told, dropout, by_word, enable_gqa=k.size(1) != q.size(1))
    name = SDPBackend(backend).name.removesuffix("_ATTENTION").lower()
    rule = (
        ", causal" if by_word else ", with a bias" if bias is not None else ", with a mask" if told is not None else ""
    )
    return f"fused: {name}{rule}{calculated}"
