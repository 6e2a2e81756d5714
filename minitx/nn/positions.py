"""Position schemes: how a model learns where a token stands. One interface, three hooks, one registry.

Legend: B batch, T queries, S keys, H heads, K d_head, D d_model. Hooks take position ids (position_ids.py), never
lengths, so padding, caches and unusual numberings need no second method. To add a scheme, subclass NoPositions,
override one hook and register the class under the name that goes into `model.position.name`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

POSITIONS: dict[str, type[NoPositions]] = {}
"""Every scheme by its name in the YAML."""

Scheme = TypeVar("Scheme", bound="type[NoPositions]")


def register(name: str) -> Callable[[Scheme], Scheme]:
    """Make a scheme available as model.position.name."""

    def add(scheme: Scheme) -> Scheme:
        POSITIONS[name] = scheme
        return scheme

    return add


@register("none")
class NoPositions(nn.Module):
    """No positions at all: the interface with every hook left empty.

    Without positions, attention without a mask cannot tell one order from another; a causal decoder can
    still count what it sees (Haviv et al. 2022, "Transformer language models without positional encodings").
    """

    max_len: int | None = None
    """The number of positions that the scheme can tell apart; None for any number."""
    absolute: ClassVar[bool] = False
    """Whether adding a constant to every id changes the result."""

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool) -> None:
        super().__init__()

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Mark the token embeddings. x [B, T, D], pos [B, T] or [1, T]; returns [B, T, D]."""
        return x

    def rotate(self, x: Tensor, pos: Tensor) -> Tensor:
        """Turn queries, or new keys, by their position. x [B, H, T, K]; returns the same shape."""
        return x

    def bias(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """What to add to the scaled scores: [B or 1, H, T, S], from q [B, H, T, K], k [B, G, S, K] and their ids."""
        return None


@register("sinusoidal")
class SinusoidalPositions(NoPositions):
    """Sines and cosines of geometrically spaced wavelengths, added to the embeddings (Vaswani et al. 2017, 3.5).

    Dimension 2j of position p is sin(p / base^(2j / D)) and dimension 2j + 1 its cosine: a shift of the position
    is then a rotation of each pair.

    Args:
        base: the longest wavelength is 2 pi base.
    """

    absolute = True

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool, base: float = 10000.0) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        if d_model % 2:
            raise ValueError(f"model.d_model must be even for model.position.name sinusoidal, got {d_model}")
        if base <= 1.0:
            raise ValueError(f"model.position.base must be larger than 1, got {base}")
        exponents = torch.arange(0, d_model, 2, dtype=torch.float32) / d_model
        self.register_buffer("frequencies", torch.exp(-math.log(base) * exponents), persistent=False)  # [D / 2]
        self.frequencies: Tensor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SinusoidalPositions:
        """Follow the model to its device, but not to half precision: there, large angles would be far off."""
        exact = self.frequencies
        super()._apply(fn, recurse)
        self.frequencies = exact.to(self.frequencies.device)
        return self

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Add the wave of each id."""
        angles = pos[..., None] * self.frequencies  # [B, T, D / 2]
        return x + torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(x.dtype)


@register("learned")
class LearnedPositions(NoPositions):
    """A trained vector for each position, added to the embeddings (Gehring et al. 2017; GPT-2, BERT).

    Args:
        max_len: size of the table; ids beyond it are refused.
    """

    absolute = True

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool, max_len: int = 512) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        if max_len < 1:
            raise ValueError(f"model.position.max_len must be at least 1, got {max_len}")
        self.max_len: int = max_len
        self.table = nn.Embedding(max_len, d_model)

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Add the vector of each id.

        Raises:
            ValueError: an id past the table (checked on the CPU only; elsewhere the check would stall the device).
        """
        if pos.device.type == "cpu" and pos.numel() and int(pos.max()) >= self.max_len:
            raise ValueError(
                f"a sequence of {int(pos.max()) + 1} tokens is longer than the table of learned positions: "
                f"model.position.max_len is {self.max_len}"
            )
        return x + self.table(pos).to(x.dtype)
