"""Samplers: plain functions from logits to the id of the next token, greedy or random.

Legend: B batch, R rows of the whole batch, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from minitx.hardware.devices import moved, widest_float

NUMBERS_AT_ONCE = 64  # number of random numbers that are generated ahead for each row
TEMPERATURES = (1e-20, 1e20)
"""Outside this range logits would overflow; at its ends the most likely token is certain, or all are equally likely."""

Sampler = Callable[..., Tensor]
"""From logits [B, V], and the indices [B] of their rows in the whole batch if some have ended, to ids [B]."""


def greedy(logits: Tensor, rows: Tensor | None = None) -> Tensor:
    """The most likely token: [B, V] to [B]."""
    return logits.argmax(dim=-1)


def sampler(generators: Sequence[torch.Generator], device: torch.device, **filters: Any) -> Sampler:
    """A sampler of the distribution after filters, which are arguments of `filtered`.

    generators are one for each row, so that a row's output does not depend on its batch, and on the CPU, so that a seed
    gives the same numbers on every device; device is that of the logits.
    """
    chances = uniforms(generators, device)

    def sample(logits: Tensor, rows: Tensor | None = None) -> Tensor:
        chance = next(chances)
        return token_at(filtered(logits, **filters), chance if rows is None else chance[rows])

    return sample


def uniforms(generators: Sequence[torch.Generator], device: torch.device) -> Iterator[Tensor]:
    """Yield random numbers in [0, 1) without end: [R, 1], one for each row, from the row's own generator."""
    dtype = widest_float(device)
    while True:
        rows = [torch.rand(NUMBERS_AT_ONCE, generator=own, dtype=torch.float64, device="cpu") for own in generators]
        # Rounding must not give 1, which is past the last token.
        table = torch.stack(rows).to(dtype).clamp(max=1 - torch.finfo(dtype).eps / 2)
        yield from moved(table, device).split(1, dim=1)


def token_at(probabilities: Tensor, chance: Tensor) -> Tensor:
    """The first token whose cumulative probability [B, V] exceeds chance [B, 1], a share of the total: ids [B]."""
    summed = probabilities.to(widest_float(probabilities.device)).cumsum(dim=-1)
    token = torch.searchsorted(summed, chance * summed[:, -1:], right=True)
    return token[:, 0].clamp(max=probabilities.size(-1) - 1)


def filtered(
    logits: Tensor,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """The probabilities [B, V] after these filters, in this order; None disables one.

    Args:
        temperature: divides the logits; below 1 sharper, above 1 flatter.
        top_k: keep the k most likely tokens (Fan et al. 2018).
        top_p: keep the smallest set of most likely tokens with at least this probability (Holtzman et al. 2020).
        min_p: keep tokens at least this share as likely as the most likely one (Nguyen et al. 2024).
    """
    logits = logits.float()
    if temperature is not None:
        logits = logits / min(max(temperature, TEMPERATURES[0]), TEMPERATURES[1])
    if top_k is not None and top_k < logits.size(-1):
        logits = logits.masked_fill(logits < logits.topk(top_k, dim=-1).values[:, -1:], -torch.inf)
    if top_p is not None and top_p < 1:
        ordered, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
        # Whether the more likely tokens already reach top_p, which must not be 0 in fp32: no token would be left.
        outside = ordered.cumsum(dim=-1) - ordered >= max(top_p, 1e-30)
        logits = logits.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
    if min_p is not None:
        probabilities = logits.softmax(dim=-1)
        logits = logits.masked_fill(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)
    return logits.softmax(dim=-1)
