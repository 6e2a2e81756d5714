"""Masked language modelling: choice and replacement of the tokens to predict (BERT; Devlin et al. 2019, section 3.1).

Legend: N examples, T tokens.
"""

import torch
from torch import Tensor

from minitx.data.examples import Masked
from minitx.data.tokenizers import SpecialIds

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1
"""Shares of the chosen tokens that become <mask> and a random token; the rest are unchanged."""


def mask_tokens(ids: Tensor, special: SpecialIds, vocab_size: int, share: float, generator: torch.Generator) -> Masked:
    """Choose tokens to predict, and replace most of them.

    A chosen token becomes <mask> in 80 % of cases, a random token in 10 %, and stays in 10 %, so that a model cannot
    trust the unmasked tokens either.

    Args:
        ids: [N, T], padded on the right.
        special: ids that are never chosen.
        vocab_size: random tokens are below it.
        share: probability that a token is chosen. In a row without a chosen token, the one nearest to it is taken.
        generator: of random numbers.
    """
    keep = ids != special.pad
    chance = torch.rand(ids.shape, generator=generator).masked_fill(torch.isin(ids, torch.tensor(special)), 2.0)
    chosen = (chance < share) | ((chance <= chance.amin(dim=1, keepdim=True)) & (chance < 1.0))
    fate = torch.rand(ids.shape, generator=generator)
    # An imported tokenizer may have its special tokens last; then a random token may be one of them.
    first = max(special) + 1
    others = torch.randint(first if first < vocab_size else 0, vocab_size, ids.shape, generator=generator)
    source = torch.where(chosen & (fate < MASK_SHARE), special.mask, ids)
    source = torch.where(chosen & (fate >= MASK_SHARE) & (fate < MASK_SHARE + RANDOM_SHARE), others, source)
    return Masked(source, keep, ids, chosen)
