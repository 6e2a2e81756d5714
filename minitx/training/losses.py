"""What training minimises.

Legend: N examples, T tokens, V vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from minitx.data.framing import IGNORE


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


def count(labels: Tensor) -> Tensor:
    """How many places have a label, at least 1 to divide by: []."""
    return (labels != IGNORE).sum().clamp(min=1)
