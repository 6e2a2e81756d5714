"""Changes of the logits that depend on the tokens so far. Names and arithmetic are Hugging Face's.

Legend: B batch, S tokens so far, V vocabulary. The history is the ids [B, S] of prompt and output, and keep [B, S] (or
None) its real tokens: padding is neither penalized nor part of an n-gram.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

LogitsProcessor = Callable[[Tensor, Tensor, Tensor | None, int], Tensor]
"""From logits [B, V], history, its keep and the number of tokens generated so far to logits [B, V]."""


def combine_processors(
    eos: Sequence[int],
    repetition_penalty: float = 1.0,
    no_repeat_ngram_size: int = 0,
    min_new_tokens: int = 0,
    never: Sequence[int] = (),
    forced: Mapping[int, int] | None = None,
) -> LogitsProcessor | None:
    """Combine the processors into one, in this order; None if no logits would change.

    eos are the ids that end a text, but not before min_new_tokens; never are tokens that are not generated at all;
    forced are tokens by the number of tokens generated before them.
    """
    if repetition_penalty == 1.0 and not no_repeat_ngram_size and not min_new_tokens and not never and not forced:
        return None

    def process(logits: Tensor, history: Tensor, keep: Tensor | None, generated: int) -> Tensor:
        if repetition_penalty != 1.0:
            logits = apply_repetition_penalty(logits, history, keep, repetition_penalty)
        if no_repeat_ngram_size:
            logits = without_repeated_ngrams(logits, history, keep, no_repeat_ngram_size)
        if never:
            logits = without(logits, never)
        if generated < min_new_tokens:
            logits = without(logits, eos)
        if forced and generated in forced:
            logits = torch.full_like(logits, -torch.inf)
            logits[..., forced[generated]].fill_(0.0)
        return logits

    return process


def apply_repetition_penalty(logits: Tensor, history: Tensor, keep: Tensor | None, penalty: float) -> Tensor:
    """Divide positive logits of tokens in the history by the penalty, multiply negative ones (Keskar et al. 2019)."""
    real = torch.ones_like(history) if keep is None else keep
    # Counted: CUDA has no scatter_reduce of bool.
    seen = torch.zeros_like(logits, dtype=torch.int).scatter_add_(1, history, real.int()) > 0
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def without_repeated_ngrams(logits: Tensor, history: Tensor, keep: Tensor | None, size: int) -> Tensor:
    """Make impossible every token that would repeat an n-gram of `size` tokens (Paulus et al. 2018)."""
    if history.size(1) < size:
        return logits
    windows = history.unfold(1, size, 1)  # [B, S - size + 1, size]
    latest = history[:, history.size(1) - size + 1 :]  # [B, size - 1], which the next token completes to an n-gram
    same = (windows[..., :-1] == latest[:, None]).all(dim=-1)
    if keep is not None:
        same &= keep.unfold(1, size, 1).all(dim=-1)
    banned = torch.zeros_like(logits, dtype=torch.int).scatter_add_(1, windows[..., -1], same.int()) > 0
    return logits.masked_fill(banned, -torch.inf)


def without(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Make these tokens impossible."""
    logits = logits.clone()
    for token in tokens:  # a tensor of ids would have to be copied to the device at every step
        logits[..., token].fill_(-torch.inf)
    return logits
