"""What a position scheme tells a model, as numbers: read off its three hooks, so that a new scheme is shown for free.

Legend: T positions, H heads, K d_head, D d_model.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from minitx.nn import MultiHeadAttention
from minitx.nn.positions import SinusoidBase
from minitx.nn.stacks import Stack


class PositionSignal(NamedTuple):
    """What a scheme does in one stack; None for what it leaves alone."""

    table: Tensor | None  # [T, D], what is added to the embedding at each position
    angles: Tensor | None  # [T, pairs], by how many radians each pair of dimensions is turned
    agreement: Tensor | None  # [T], product of a vector with itself turned so far, as a share of the unturned one
    bias: Tensor | None  # [H, T, T], what is added to the scores of queries and keys that are zero


@torch.no_grad()
def position_signals(model: nn.Module, length: int) -> dict[str, PositionSignal]:
    """The signal in each stack of a model, "encoder" and "decoder", over the first `length` positions.

    A scheme that has weights of its own in each layer is shown for the lowest one. What a causal query cannot see is
    minus infinity in the bias.
    """
    found = {}
    for name, stack in model.named_children():
        if isinstance(stack, Stack):
            attention = next(part for part in stack.modules() if isinstance(part, MultiHeadAttention))
            found[name] = _signal(stack, attention, length, causal=name == "decoder")
    return found


def _signal(stack: Stack, attention: MultiHeadAttention, length: int, causal: bool) -> PositionSignal:
    scheme, d_model = attention.position, attention.q_proj.in_features
    pos = torch.arange(length)[None]
    prepared = scheme.prepare(pos, pos)
    table = stack.position.embed(torch.zeros(1, length, d_model), pos)[0]
    ones = torch.ones(1, attention.n_heads, length, attention.d_head)
    turned = scheme.rotate(ones, prepared)
    agreement = (turned[:, :, :1] * turned).mean(dim=(0, 1, 3))
    turns = not torch.equal(turned, ones)
    nothing = torch.zeros_like(ones)
    bias = scheme.bias(nothing, nothing, prepared)
    if bias is not None and causal:
        bias = bias.masked_fill(pos[0] > pos[0][:, None], float("-inf"))
    return PositionSignal(
        table if table.any() else None,
        scheme.angles(pos[0]) if turns and isinstance(scheme, SinusoidBase) else None,
        agreement if turns else None,
        None if bias is None else bias[0],
    )
