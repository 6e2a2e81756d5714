"""Token ids to vectors, and vectors back to scores over tokens.

Legend: B batch, T tokens, D d_model, V vocabulary.
"""

import math
from collections import OrderedDict

from torch import Tensor, nn

from minitx.nn.errors import OptionError, require
from minitx.nn.feed_forward import ACTIVATIONS


class TokenEmbedding(nn.Module):
    """A trained vector for each token, scaled by sqrt(D) to the size of the position signal added to it.

    The scale also lets a tied output head use the same table of small numbers (Vaswani et al. 2017, 3.4). scaled=False
    leaves the vectors of the table as they are (GPT-2, BERT, Llama).
    """

    def __init__(self, vocab_size: int, d_model: int, scaled: bool = True) -> None:
        super().__init__()
        require(vocab_size >= 1, f"model.vocab_size must be positive, got {vocab_size}")
        self.table = nn.Embedding(vocab_size, d_model)
        self.scale = math.sqrt(d_model) if scaled else 1.0

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] to [B, T, D]."""
        try:
            return self.table(ids) * self.scale
        except IndexError:  # on a CPU
            raise OptionError(f"ids must be in [0, {len(self.table.weight)}), got {ids.min()} to {ids.max()}") from None


class HeadTransform(nn.Sequential):
    """A linear map, the activation and a norm before the head, [B, T, D] to [B, T, D] (BERT; Devlin et al. 2019, code).

    activation is a name in ACTIVATIONS; of a gated one, its non-linearity alone is used.
    """

    def __init__(self, d_model: int, activation: str, norm: nn.Module) -> None:
        super().__init__(OrderedDict(proj=nn.Linear(d_model, d_model), activation=ACTIVATIONS[activation](), norm=norm))


class Head(nn.Linear):
    """Scores over the vocabulary, [B, T, D] to [B, T, V]; may share its table with the embedding.

    tied is the embedding whose table to use (Press and Wolf 2017), None for a table of its own; transform is applied to
    the vectors first; softcap is c, for scores c tanh(score / c) in (-c, c) (Gemma 2).
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        tied: TokenEmbedding | None = None,
        bias: bool = False,
        transform: HeadTransform | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__(d_model, vocab_size, bias=bias)
        self.transform, self.softcap = transform, softcap
        if tied is not None:
            self.weight = tied.table.weight

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] to [B, T, V]."""
        scores = super().forward(x if self.transform is None else self.transform(x))
        return scores if self.softcap is None else self.softcap * (scores / self.softcap).tanh()
