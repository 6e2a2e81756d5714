"""Masked language modelling: which tokens are hidden, and behind what (BERT; Devlin et al. 2019, section 3.1).

Legend: N examples, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitx.data.examples import Masked
from minitx.data.tokenizers import SpecialIds

AS_MASK, AS_RANDOM = 0.8, 0.1
"""Shares of the hidden tokens that are replaced by <mask> and by a random token; the rest stay as they are."""


def hide(ids: Tensor, special: SpecialIds, vocab_size: int, share: float, generator: torch.Generator) -> Masked:
    """Choose tokens to be predicted and hide most of them.

    A token that is chosen becomes <mask> in 80 % of cases, any other token in 10 % and stays itself in 10 %: where no
    <mask> stands, the model must still doubt what it reads.

    Args:
        ids: [N, T], padded on the right.
        special: never chosen, and never put in a token's place.
        vocab_size: number of tokens.
        share: probability with which a token is chosen. A row in which none was has its nearest miss chosen.
        generator: of random numbers.
    """
    keep = ids != special.pad
    chance = torch.rand(ids.shape, generator=generator).masked_fill(torch.isin(ids, torch.tensor(special)), 2.0)
    chosen = (chance < share) | ((chance <= chance.amin(dim=1, keepdim=True)) & (chance < 1.0))
    fate = torch.rand(ids.shape, generator=generator)
    first = max(special) + 1  # an imported tokenizer may have its special tokens last: then one may be drawn
    others = torch.randint(first if first < vocab_size else 0, vocab_size, ids.shape, generator=generator)
    source = torch.where(chosen & (fate < AS_MASK), special.mask, ids)
    source = torch.where(chosen & (fate >= AS_MASK) & (fate < AS_MASK + AS_RANDOM), others, source)
    return Masked(source, keep, ids, chosen)
