"""How the next token is chosen: plain functions from logits to ids. No model, no text.

Legend: B batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Chooser = Callable[[Tensor], Tensor]
"""From logits [B, V] to ids [B]."""


def greedy(logits: Tensor) -> Tensor:
    """The most likely token: [B, V] to [B]."""
    return logits.argmax(dim=-1)


def sampler(
    generator: torch.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Chooser:
    """A chooser that draws from the distribution after temperature and the filters, in this order.

    Args:
        generator: the random numbers, on the CPU, so that a seed means the same on every device.
        temperature: divides the logits; below 1 sharper, above 1 flatter.
        top_k: keep the k most likely tokens (Fan et al. 2018).
        top_p: keep the smallest set of most likely tokens with at least this probability (Holtzman et al. 2020).
        min_p: keep tokens at least this share as likely as the most likely one (Nguyen et al. 2024).

    Raises:
        ValueError: a number out of its range.
    """
    _check("temperature", temperature, temperature > 0, "larger than 0")
    _check("top_k", top_k, top_k is None or top_k >= 1, "at least 1")
    _check("top_p", top_p, top_p is None or 0 < top_p <= 1, "in (0, 1]")
    _check("min_p", min_p, min_p is None or 0 <= min_p <= 1, "in [0, 1]")

    def choose(logits: Tensor) -> Tensor:
        probabilities = filtered(logits, temperature, top_k, top_p, min_p)
        return torch.multinomial(probabilities.cpu(), 1, generator=generator)[:, 0].to(logits.device)

    return choose


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


def _check(name: str, value: float | None, good: bool, expected: str) -> None:
    if not good:
        raise ValueError(f"{name} must be {expected}, got {value}")
