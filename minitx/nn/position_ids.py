"""Which position each token is told to stand at. Knows nothing of schemes, which turn these ids into signals.

Legend: B batch, T tokens. An index is where a token stands in the tensor; its position id is what a scheme is told.
"""

from __future__ import annotations

import torch
from torch import Tensor


def consecutive(length: int, keep: Tensor | None = None, device: torch.device | None = None) -> Tensor:
    """0, 1, 2, ... over the real tokens of each row, so that padding on the left shifts nothing.

    Args:
        length: number of tokens T.
        keep: [B, T], True for a real token; None when every token is real.
        device: where to make the ids when there is no keep to tell.

    Returns:
        [B, T], or [1, T] without keep. Padding shares the id of its left neighbour (0 before the first token).
    """
    if keep is None:
        return torch.arange(length, device=device)[None]
    return (keep.long().cumsum(dim=1) - 1).clamp_(min=0)
