"""The numbers that position schemes are made of: frequencies, sinusoids, slopes.

Legend: W frequencies, D d_model, H heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minitx.nn.errors import OptionError


def geometric(base: float, size: int) -> Tensor:
    """Frequencies base^(-2j / size) for each pair j of `size` dimensions, fp32 [size / 2]."""
    if base <= 1.0:
        raise OptionError(f"model.position.base must be larger than 1, got {base}")
    return torch.exp(-math.log(base) * torch.arange(0, size, 2, dtype=torch.float32) / size)


def full_width_frequencies(name: str, base: float, d_model: int) -> Tensor:
    """Frequencies whose pairs of sine and cosine fill the whole width, fp32 [D / 2]."""
    if d_model % 2:
        raise OptionError(f"model.d_model must be even for model.position.name {name}, got {d_model}")
    return geometric(base, d_model)


def interleaved_sinusoids(angles: Tensor) -> Tensor:
    """Sine and cosine of each angle in turn: [..., W] to [..., 2 W]."""
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def head_slopes(heads: int) -> list[float]:
    """2^(-8 i / H) for a power of two; else those of the next lower one, and every other of the next higher."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    return slopes if power == heads else slopes + head_slopes(2 * power)[0::2][: heads - power]
