"""What training minimises.

Legend: N examples, T tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minitx.data.batch import IGNORE

MOST_LOGITS = 2**26
"""Scores that may be held at once, here a quarter of a gigabyte in fp32; beyond that the loss goes piece by piece."""


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Summed cross-entropy in nats over the places that have a label: divide by how many there are.

    Args:
        logits: [N, T, V].
        labels: [N, T], IGNORE where nothing is to be predicted.
        label_smoothing: share of the target's probability spread over all tokens (Szegedy et al. 2016).
    """
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORE,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def piecewise_cross_entropy(
    hidden: Tensor, head: nn.Linear, labels: Tensor, label_smoothing: float = 0.0, most: int = MOST_LOGITS
) -> Tensor:
    """The same from what the head reads, holding no more than `most` logits at a time, forward and backward.

    Each piece is computed again in the backward (Chen et al. 2016): one more product with the head's table, instead of
    logits, their fp32 copy and their gradient for all tokens, which for large vocabularies outweigh the whole model.

    Args:
        hidden: [N, T, D].
        head: from [..., D] to logits [..., V].
        labels: [N, T], IGNORE where nothing is to be predicted.
        label_smoothing: as for cross_entropy.
        most: logits.
    """
    rows = max(1, most // head.out_features)

    def piece(part: Tensor, names: Tensor) -> Tensor:
        return cross_entropy(head(part)[None], names[None], label_smoothing)

    pieces = zip(hidden.flatten(0, 1).split(rows), labels.flatten().split(rows), strict=True)
    losses = [checkpoint(piece, *each, use_reentrant=False) for each in pieces]
    return sum(losses, start=hidden.new_zeros((), dtype=torch.float32))


def count(labels: Tensor) -> Tensor:
    """How many places have a label, at least 1 to divide by: []."""
    return (labels != IGNORE).sum().clamp(min=1)
