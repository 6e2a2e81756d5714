"""How the next token is chosen: plain functions from logits to ids. No model, no text.

Legend: B batch, R rows of the whole batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from minitx.hardware.devices import moved, widest_float

DRAWN_AT_ONCE = 64
"""Random numbers that a row draws ahead."""


class Sampler(Protocol):
    """How a token is chosen."""

    def __call__(self, logits: Tensor, rows: Tensor | None = None) -> Tensor:
        """From logits [B, V] to ids [B]; rows [B] are the places in the whole batch of those that are still written."""


def greedy(logits: Tensor, rows: Tensor | None = None) -> Tensor:
    """The most likely token: [B, V] to [B]."""
    return logits.argmax(dim=-1)


def sampler(
    generators: torch.Generator | Sequence[torch.Generator],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Sampler:
    """A chooser that draws from the distribution after temperature and the filters, in this order.

    Args:
        generators: the random numbers, on the CPU, so that a seed means the same on every device. One for all rows, or
            one for each, so that what a row writes does not depend on the batch that it is in.
        temperature: divides the logits; below 1 sharper, above 1 flatter.
        top_k: keep the k most likely tokens (Fan et al. 2018).
        top_p: keep the smallest set of most likely tokens with at least this probability (Holtzman et al. 2020).
        min_p: keep tokens at least this share as likely as the most likely one (Nguyen et al. 2024).

    Raises:
        ValueError: a number out of its range.
    """
    check(temperature, top_k, top_p, min_p)
    uniforms = None if isinstance(generators, torch.Generator) else Uniforms(generators)

    def choose(logits: Tensor, rows: Tensor | None = None) -> Tensor:
        probabilities = filtered(logits, temperature, top_k, top_p, min_p)
        if isinstance(generators, torch.Generator):
            chance = moved(_shares(generators, (len(logits), 1), logits.device), logits.device)
        else:
            assert uniforms is not None
            chance = uniforms.next(logits.device)
            chance = chance if rows is None else chance[rows]
        return drawn(probabilities, chance)

    return choose


class Uniforms:
    """Numbers in [0, 1), each row its own sequence, whichever rows are with it.

    Args:
        generators: one for each row.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self.generators = generators
        self._table = torch.empty(len(generators), 0)
        self._column = 0

    def next(self, device: torch.device) -> Tensor:
        """One number for each row, [R, 1]."""
        if self._column == self._table.size(1):
            rows = [_shares(own, (DRAWN_AT_ONCE,), device) for own in self.generators]
            self._table, self._column = moved(torch.stack(rows), device), 0
        self._column += 1
        return self._table[:, self._column - 1 : self._column]


def _shares(generator: torch.Generator, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Random numbers in [0, 1) in the widest type of a device; on the CPU, as the generator is."""
    dtype = widest_float(device)
    # A number next to 1 must not be rounded to it: no token stands there.
    return (
        torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype).clamp(max=1 - torch.finfo(dtype).eps / 2)
    )


def drawn(probabilities: Tensor, chance: Tensor) -> Tensor:
    """The token at which the summed probabilities [B, V] pass chance [B, 1], a share of their total: ids [B]."""
    summed = probabilities.to(widest_float(probabilities.device)).cumsum(dim=-1)
    place = torch.searchsorted(summed, chance * summed[:, -1:], right=True)
    return place[:, 0].clamp(max=probabilities.size(-1) - 1)


def filtered(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """The probabilities [B, V] that sampler draws from; see there."""
    logits = logits.float() / temperature
    if top_k is not None and top_k < logits.size(-1):
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p is not None and top_p < 1:
        ordered, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
        outside = ordered.cumsum(dim=-1) - ordered >= top_p  # what stands before already reaches top_p
        logits = logits.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
    if min_p is not None:
        probabilities = logits.softmax(dim=-1)
        least = min_p * probabilities.amax(dim=-1, keepdim=True)
        logits = logits.masked_fill(probabilities < least, -torch.inf)
    return logits.softmax(dim=-1)


def check(temperature: float, top_k: int | None, top_p: float | None, min_p: float | None) -> None:
    """Refuse numbers out of their range.

    Raises:
        ValueError: with the name, what was expected and what came.
    """
    for name, value, good, expected in (
        ("temperature", temperature, temperature > 0, "larger than 0"),
        ("top_k", top_k, top_k is None or top_k >= 1, "at least 1"),
        ("top_p", top_p, top_p is None or 0 < top_p <= 1, "in (0, 1]"),
        ("min_p", min_p, min_p is None or 0 <= min_p <= 1, "in [0, 1]"),
    ):
        if not good:
            raise ValueError(f"{name} must be {expected}, got {value}")
