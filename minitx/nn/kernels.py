"""The kernels of attention: torch's fused ones, flex_attention on a GPU, or the explicit formula.

Legend: B batch, T queries, S keys, H heads, G key-value heads, K d_head.
All of them give the same result, up to rounding. A stack combines rules, mask and bias once into the form that the
kernel of its layers reads (`fold`); scaled_dot_product_attention does so for a single call.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from minitx.nn import masks
from minitx.nn.attention import explicit_attention
from minitx.nn.flex import flex_attention

HALF = (torch.bfloat16, torch.float16)
CPU_HALF_KERNELS = ("fused fp32", "fused", "explicit")
"""Kernels of half precision on a CPU: torch's fused kernel on fp32 copies, the same without them, or the explicit
softmax. The fastest one depends on processor and lengths."""
training_kernel = CPU_HALF_KERNELS[0]
"""The one that training uses. A run may select another; inference always uses the first."""
CUDNN_FROM_TOKENS = 512
"""Minimum number of queries for which torch may select cuDNN, which prepares each shape: short inputs have many. With a
mask, its backward gives NaN for queries if tokens % 128 is 64 and scores are low (pytorch issue 196678)."""
in_graph = False
"""Whether a step is being captured as a CUDA graph: its shapes are fixed, and cuDNN's kernel is the fastest one."""
WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
FLEX_FROM_TOKENS = 1024  # tokens from which a compiled kernel that skips masked blocks is faster
FLEX_MIN_D_HEAD = 16  # minimum d_head of flex attention's kernels

Kernel = Literal["fused", "flex", "explicit"]


class Operands(NamedTuple):
    """Properties of queries and keys, known before they are computed."""

    queries: int
    keys: int
    d_head: int
    dtype: torch.dtype
    device: torch.device
    trained: bool = False  # whether they have a gradient


class MaskAndBias(NamedTuple):
    """Which keys the queries may attend to and what is added to their scores, in the form that a kernel reads."""

    mask: Tensor | None = None  # bool; or float, ready for a fused kernel: the bias, -inf where a key is hidden
    bias: Tensor | None = None  # added to the scaled scores, unless it is in the mask already
    causal: bool = False  # these two are rules that the kernel itself applies, with no tensor
    window: int | None = None


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
) -> Any:
    """Compute softmax(q k^T / sqrt(K) + bias) v over the keys that may be attended to.

    Arguments as for explicit_attention, and:

    Args:
        mask: bool, or float as fold makes it: added to the scores, -inf = may not attend.
        dropout: always applied: pass 0 in evaluation.
        return_weights: also return the weights before dropout, which a fused kernel never holds.
        causal: also apply the right-aligned causal mask.
        window: also hide all but the `window` nearest keys, the query's own included; see masks.window.

    Returns:
        The output [B, H, T, K], or (output, weights [B, H, T, S]). Both are zero in a row without a key.
    """
    operands = Operands(q.size(-2), k.size(-2), v.size(-1), q.dtype, q.device, q.requires_grad)
    masking = MaskAndBias(mask, bias, causal, window)
    kernel = "explicit" if return_weights else choose_kernel(operands, masking, dropout, softcap)
    mask, bias, causal, window = fold(operands, masking, kernel)
    if kernel == "flex":
        return flex_attention(q, k, v, causal=causal, window=window, softcap=softcap)
    if kernel == "explicit":
        out, weights = explicit_attention(q, k, v, mask, bias, dropout, softcap, return_weights)
        return (out, weights) if return_weights else out
    grouped = bool(k.dim() == 4 and k.size(1) != q.size(1))  # a size is a tensor in torch.jit.trace
    if fused_dtype(operands) == q.dtype:
        with allowed_kernels(operands, mask):
            return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, enable_gqa=grouped)
    with torch.autocast("cpu", enabled=False):
        parts = q.float(), k.float(), v.float()
        return F.scaled_dot_product_attention(*parts, mask, dropout, causal, enable_gqa=grouped).to(q.dtype)


def choose_kernel(
    operands: Operands, masking: MaskAndBias, dropout: float = 0.0, softcap: float | None = None
) -> Kernel:
    """Choose the kernel that computes attention; nothing else decides this.

    fused is torch's scaled_dot_product_attention, which selects one of its own kernels. flex skips blocks outside a
    window and can cap scores: on a GPU, for long unpadded sequences, not in fp64. explicit does the rest; also one
    query in a compiled step or graph, on GPUs only in fp32, and half-precision training if training_kernel is explicit.
    """
    queries, keys, d_head, dtype, device, _ = operands
    # In such a program launches cost little, and for one query a GPU's fp32 kernel computes a whole block.
    program = queries == 1 and (torch.compiler.is_compiling() or in_graph)
    if (program and (device.type == "cpu" or dtype == torch.float32)) or _cpu_half_kernel(operands) == "explicit":
        return "explicit"
    plain = masking.mask is None and masking.bias is None and not dropout
    long = queries == keys >= FLEX_FROM_TOKENS and d_head >= FLEX_MIN_D_HEAD and dtype != torch.float64
    if (masking.window or softcap) and plain and long and device.type == "cuda":
        return "flex"
    return "explicit" if softcap else "fused"


def fold(
    operands: Operands, masking: MaskAndBias, kernel: Kernel, rules: Sequence[masks.Predicate] = ()
) -> MaskAndBias:
    """Combine what limits attention into the form that a kernel reads; one already in that form is returned as is.

    flex: causal and the window themselves. fused: causal alone as a rule, anything else as one float mask that holds
    the bias. explicit: a bool mask and the bias. rules are further predicates; flex takes none, so they need a mask.
    """
    queries, keys, device = operands.queries, operands.keys, operands.device
    mask, bias, causal, window = masking
    if kernel == "flex" and not rules:
        return masking
    if causal and window is not None and keys <= window:
        window = None  # it hides nothing
    at_most_causal = mask is None and bias is None and window is None and len(rules) == 0
    if kernel == "fused" and at_most_causal and (not causal or queries == keys):
        return MaskAndBias(causal=causal)
    if causal and queries == 1 and window is None:
        causal = False  # the last query may attend to all of these keys
    rules = [*masks.rules(causal, window), *rules]
    if mask is not None and mask.is_floating_point() and (kernel == "explicit" or rules or bias is not None):
        allowed = mask > -math.inf
        added = torch.where(allowed, mask, 0.0)
        mask, bias = allowed, added if bias is None else added + bias
    if rules:
        allowed = masks.build(*rules, queries=queries, keys=keys, device=device)
        mask = allowed if mask is None else torch.logical_and(mask, allowed)
    if kernel == "explicit":
        return MaskAndBias(mask, bias)
    if bias is not None or (mask is not None and not mask.is_floating_point()):
        bias = torch.zeros((), dtype=fused_dtype(operands), device=device) if bias is None else bias
        bias = bias.to(fused_dtype(operands)).contiguous()  # a GPU has fused kernels for no other layout
        mask = bias if mask is None else torch.where(mask, bias, -math.inf)
    if mask is not None and (mask.dim() < 2 or mask.size(-1) != keys or mask.stride(-1) != 1):
        mask = mask.expand(*torch.broadcast_shapes(mask.shape, (1, keys))).contiguous()  # they take no other layout
    return MaskAndBias(None if mask is None else mask.to(fused_dtype(operands)))


def allowed_kernels(operands: Operands, mask: Tensor | None) -> AbstractContextManager[None]:
    """Keep torch from choosing cuDNN's kernel within a `with` block, if it would be slow or wrong."""
    if operands.device.type != "cuda" or (mask is None and operands.queries >= CUDNN_FROM_TOKENS):
        return nullcontext()
    if in_graph and torch.backends.cuda.cudnn_sdp_enabled():
        return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *WITHOUT_CUDNN], set_priority=True)
    return sdpa_kernel(WITHOUT_CUDNN) if torch.compiler.is_compiling() else without_cudnn()


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Do the same as sdpa_kernel(WITHOUT_CUDNN), in a twentieth of its time."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def fused_dtype(operands: Operands) -> torch.dtype:
    """The dtype in which a fused kernel computes."""
    return torch.float32 if _cpu_half_kernel(operands) == "fused fp32" else operands.dtype


def _cpu_half_kernel(operands: Operands) -> str | None:
    """One of CPU_HALF_KERNELS, for half precision on a CPU."""
    if operands.device.type != "cpu" or operands.dtype not in HALF:
        return None
    return training_kernel if operands.trained else CPU_HALF_KERNELS[0]
