"""Token ids to vectors, and vectors back to scores over tokens.

Legend: B batch, T tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

import math

from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """A trained vector for each token, scaled by sqrt(D) so that it stands up to the position signal beside it.

    The scale also lets one table of small numbers serve the output head when they are tied (Vaswani et al. 2017, 3.4).

    Args:
        vocab_size: number of tokens V.
        d_model: width D.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        if vocab_size < 1:
            raise ValueError(f"model.vocab_size must be positive, got {vocab_size}")
        self.table = nn.Embedding(vocab_size, d_model)
        self.scale = math.sqrt(d_model)

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] to [B, T, D]."""
        return self.table(ids) * self.scale


class Head(nn.Linear):
    """Scores over the vocabulary, [B, T, D] to [B, T, V], without a bias; may share its table with the embedding.

    Args:
        vocab_size: number of tokens V.
        d_model: width D.
        tied: the embedding whose table to use (Press and Wolf 2017); None for a table of its own.
    """

    def __init__(self, vocab_size: int, d_model: int, tied: TokenEmbedding | None = None) -> None:
        super().__init__(d_model, vocab_size, bias=False)
        if tied is not None:
            self.weight = tied.table.weight
