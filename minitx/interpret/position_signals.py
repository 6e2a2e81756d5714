"""The effect of a position scheme as numbers, computed from its three hooks, so that a new scheme needs no code here.

Legend: T positions, H heads, K d_head, D d_model.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minitx.nn.positions import SinusoidBase
from minitx.nn.stacks import Stack


class PositionSignal(NamedTuple):
    """The effect of a scheme in one stack; None for each hook that it does not use."""

    table: Tensor | None  # [T, D], added to the embedding at each position
    angles: Tensor | None  # [T, pairs], rotation of each pair of dimensions in radians
    similarity: Tensor | None  # [T], cosine of a vector of ones with itself rotated to each position
    bias: Tensor | None  # [H, T, T], added to the scores; computed for queries and keys of zero


@torch.no_grad()
def position_signals(model: nn.Module, length: int) -> dict[str, PositionSignal]:
    """The signal in each stack of a model, "encoder" and "decoder", over the first `length` positions.

    Evaluated in the first layer without a window, as a window may have a scheme of its own; in the first one where all
    have a window. Causal masking is minus infinity in the bias.
    """
    stacks = {name: stack for name, stack in model.named_children() if isinstance(stack, Stack)}
    return {name: _signal(stack, length, causal=name == "decoder") for name, stack in stacks.items()}


def _signal(stack: Stack, length: int, causal: bool) -> PositionSignal:
    attentions: list[Any] = [layer.self_attn for layer in stack.layers]
    attention = max(attentions, key=lambda part: part.window is None)  # a window may have a scheme of its own
    scheme = attention.position
    weight = attention.q_proj.weight
    pos = torch.arange(length, device=weight.device)[None]
    prepared = scheme.prepare(pos, pos)
    table = stack.position.embed(weight.new_zeros(1, length, weight.size(1)), pos)[0]
    ones = weight.new_ones(1, attention.n_heads, length, attention.d_head)
    rotated = scheme.rotate(ones, prepared)
    later = pos.clamp(min=1)  # position 0 has no rotation
    rotates = not torch.equal(scheme.rotate(ones, scheme.prepare(later, later)), ones)
    zeros = torch.zeros_like(ones)
    bias = scheme.bias(zeros, zeros, prepared)
    if bias is not None and causal:
        bias = bias.masked_fill(pos[0] > pos[0][:, None], float("-inf"))
    return PositionSignal(
        table if table.any() else None,
        scheme.angles(pos[0]) if rotates and isinstance(scheme, SinusoidBase) else None,
        torch.cosine_similarity(rotated[:, :, :1], rotated, dim=-1).mean(dim=(0, 1)) if rotates else None,
        None if bias is None else bias[0],
    )
