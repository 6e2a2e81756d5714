"""What training minimises.

Legend: N examples, T tokens, V vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from minitx.data.framing import IGNORE


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy in nats over the places that have a label.

    Args:
        logits: [N, T, V].
        labels: [N, T], IGNORE where nothing is to be predicted.
        label_smoothing: share of the target's probability spread over all tokens (Szegedy et al. 2016).
    """
    return F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, label_smoothing=label_smoothing
    )
