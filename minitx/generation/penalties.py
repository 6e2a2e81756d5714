"""What is changed about the logits because of what has been written already. Names and arithmetic are Hugging Face's.

Legend: B batch, S tokens so far, V vocabulary. The history is the ids [B, S] that the model has read and written, and
keep [B, S] (or None) its real tokens: padding is neither punished nor repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Adjust = Callable[[Tensor, Tensor, Tensor | None, int], Tensor]
"""From logits [B, V], history, its keep and the number of tokens written so far to logits [B, V]."""


def adjusted(
    eos: Sequence[int],
    repetition_penalty: float = 1.0,
    no_repeat_ngram_size: int = 0,
    min_new_tokens: int = 0,
    never: Sequence[int] = (),
    forced: Mapping[int, int] | None = None,
) -> Adjust | None:
    """All of them in this order; None where nothing would be changed.

    Args:
        eos: the ids that end a text.
        repetition_penalty: see less_repetition.
        no_repeat_ngram_size: see without_repeated_ngrams.
        min_new_tokens: tokens before which no text ends.
        never: tokens that are never written.
        forced: tokens by the number of those before them: there nothing else can be written.
    """
    if repetition_penalty == 1.0 and not no_repeat_ngram_size and not min_new_tokens and not never and not forced:
        return None

    def adjust(logits: Tensor, history: Tensor, keep: Tensor | None, written: int) -> Tensor:
        if repetition_penalty != 1.0:
            logits = less_repetition(logits, history, keep, repetition_penalty)
        if no_repeat_ngram_size:
            logits = without_repeated_ngrams(logits, history, keep, no_repeat_ngram_size)
        if never:
            logits = without(logits, never)
        if written < min_new_tokens:
            logits = without(logits, eos)
        return only(logits, forced[written]) if forced and written in forced else logits

    return adjust


def only(logits: Tensor, token: int) -> Tensor:
    """This token alone made possible, and certain."""
    certain = torch.full_like(logits, -torch.inf)
    certain[..., token].fill_(0.0)
    return certain


def less_repetition(logits: Tensor, history: Tensor, keep: Tensor | None, penalty: float) -> Tensor:
    """Tokens of the history made less likely (CTRL; Keskar et al. 2019): positive ones divided, negative multiplied."""
    seen = torch.zeros_like(logits, dtype=torch.bool)
    real = torch.ones_like(history, dtype=torch.bool) if keep is None else keep
    seen.scatter_reduce_(1, history, real, reduce="amax")
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def without_repeated_ngrams(logits: Tensor, history: Tensor, keep: Tensor | None, size: int) -> Tensor:
    """No sequence of `size` tokens is written twice (Paulus et al. 2018): its last token is made impossible."""
    if history.size(1) < size:
        return logits
    windows = history.unfold(1, size, 1)  # [B, S - size + 1, size]
    latest = history[:, history.size(1) - size + 1 :]  # the beginning of the one that would be completed
    same = (windows[..., :-1] == latest[:, None]).all(dim=-1)
    if keep is not None:
        same &= keep.unfold(1, size, 1).all(dim=-1)
    banned = torch.zeros_like(logits, dtype=torch.bool)
    banned.scatter_reduce_(1, windows[..., -1], same, reduce="amax")
    return logits.masked_fill(banned, -torch.inf)


def without(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """These tokens made impossible."""
    logits = logits.clone()
    for token in tokens:  # a tensor of them would have to be copied to the device at every step
        logits[..., token].fill_(-torch.inf)
    return logits
