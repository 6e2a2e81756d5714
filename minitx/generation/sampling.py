"""Samplers: plain functions from logits to the id of the next token, greedy or random.

Legend: B batch, R rows of the whole batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from minitx.hardware.devices import moved, widest_float

NUMBERS_AT_ONCE = 64
"""Random numbers that are generated ahead for each row."""


class Sampler(Protocol):
    """The interface of samplers."""

    def __call__(self, logits: Tensor, rows: Tensor | None = None) -> Tensor:
        """From logits [B, V] to ids [B]; rows [B] are the indices of the remaining rows in the whole batch."""


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
    """A sampler of the distribution after temperature, top_k, top_p and min_p, in this order.

    Args:
        generators: on the CPU, so that a seed gives the same numbers on every device. One for all rows, or one for each
            row, so that a row's output does not depend on its batch.
        temperature: divides the logits; below 1 sharper, above 1 flatter.
        top_k: keep the k most likely tokens (Fan et al. 2018).
        top_p: keep the smallest set of most likely tokens with at least this probability (Holtzman et al. 2020).
        min_p: keep tokens at least this share as likely as the most likely one (Nguyen et al. 2024).

    Raises:
        ValueError: a number out of range.
    """
    check(temperature, top_k, top_p, min_p)
    uniforms = None if isinstance(generators, torch.Generator) else Uniforms(generators)

    def sample(logits: Tensor, rows: Tensor | None = None) -> Tensor:
        probabilities = filtered(logits, temperature, top_k, top_p, min_p)
        if isinstance(generators, torch.Generator):
            chance = moved(_uniform(generators, (len(logits), 1), logits.device), logits.device)
        else:
            assert uniforms is not None
            chance = uniforms.next(logits.device)
            chance = chance if rows is None else chance[rows]
        return token_at(probabilities, chance)

    return sample


class Uniforms:
    """Random numbers in [0, 1), a sequence of its own for each row.

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
            rows = [_uniform(own, (NUMBERS_AT_ONCE,), device) for own in self.generators]
            self._table, self._column = moved(torch.stack(rows), device), 0
        self._column += 1
        return self._table[:, self._column - 1 : self._column]


def _uniform(generator: torch.Generator, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Random numbers in [0, 1) on the CPU, in the widest floating-point type of a device."""
    dtype = widest_float(device)
    # Rounding must not give 1, which is past the last token.
    return (
        torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype).clamp(max=1 - torch.finfo(dtype).eps / 2)
    )


def token_at(probabilities: Tensor, chance: Tensor) -> Tensor:
    """The first token whose cumulative probability [B, V] exceeds chance [B, 1], a share of the total: ids [B]."""
    summed = probabilities.to(widest_float(probabilities.device)).cumsum(dim=-1)
    token = torch.searchsorted(summed, chance * summed[:, -1:], right=True)
    return token[:, 0].clamp(max=probabilities.size(-1) - 1)


def filtered(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """The probabilities [B, V] after temperature and filters; see sampler."""
    logits = logits.float() / temperature
    if top_k is not None and top_k < logits.size(-1):
        minimum = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < minimum, -torch.inf)
    if top_p is not None and top_p < 1:
        ordered, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
        outside = ordered.cumsum(dim=-1) - ordered >= top_p  # the more likely tokens already reach top_p
        logits = logits.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
    if min_p is not None:
        probabilities = logits.softmax(dim=-1)
        minimum = min_p * probabilities.amax(dim=-1, keepdim=True)
        logits = logits.masked_fill(probabilities < minimum, -torch.inf)
    return logits.softmax(dim=-1)


def check(temperature: float, top_k: int | None, top_p: float | None, min_p: float | None) -> None:
    """Refuse numbers out of range.

    Raises:
        ValueError: with the name, the expected range and the value.
    """
    for name, value, valid, expected in (
        ("temperature", temperature, temperature > 0, "larger than 0"),
        ("top_k", top_k, top_k is None or top_k >= 1, "at least 1"),
        ("top_p", top_p, top_p is None or 0 < top_p <= 1, "in (0, 1]"),
        ("min_p", min_p, min_p is None or 0 <= min_p <= 1, "in [0, 1]"),
    ):
        if not valid:
            raise ValueError(f"{name} must be {expected}, got {value}")
