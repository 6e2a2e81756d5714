"""Which query may attend to which key: predicates on indices, combined with AND. They do not use position ids.

Legend: B batch, T queries, S keys. A mask is bool, True = may attend, and broadcasts to [B, H, T, S].
An index is the place of a token in the tensor. Queries are right-aligned: query t of T has index S - T + t,
so the same predicate serves training (T = S), a prefill in pieces and one-token decoding (T = 1).
"""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from minitx.nn.errors import require

Predicate = Callable[[Tensor, Tensor], Tensor]
"""From query indices [T, 1] and key indices [1, S] to a bool mask [T, S], or [B, 1, T, S] where rows differ."""


def causal(query: Tensor, key: Tensor) -> Tensor:
    """Allow a query itself and the tokens before it."""
    return key <= query


def window(size: int, *, causal: bool) -> Predicate:
    """Allow the `size` keys nearest to a query, itself included (Longformer, Beltagy et al. 2020).

    Causal: itself and the size - 1 before it. Bidirectional: half on each side, so `size` must be odd.

    Raises:
        OptionError: a size out of range, or an even one if bidirectional.
    """
    require(1 <= size < 2**31, f"model.window must be at least 1 (the query itself) and below 2^31, got {size}")
    if causal:
        return lambda query, key: (key > query - size) & (key <= query)
    expected = f"must be odd where attention is bidirectional, got {size}: itself and the same number on each side"
    require(size % 2 == 1, f"model.window {expected}")
    return lambda query, key: (query - key).abs() <= size // 2


def prefix(lengths: Tensor) -> Predicate:
    """Allow the past, and both directions in the prefix of lengths [B], left padding included (Raffel et al. 2020)."""
    return lambda query, key: (key <= query) | (key < lengths[:, None, None, None])


def same_document(documents: Tensor) -> Predicate:
    """Separate documents that are packed into one row; documents [B, S] is the document number of each token."""
    return lambda query, key: documents[:, None, query] == documents[:, None, key]


def rules(is_causal: bool, size: int | None) -> list[Predicate]:
    """The predicates of causality and a window; empty without either."""
    if size is not None:
        return [window(size, causal=is_causal)]
    return [causal] if is_causal else []


def build(*predicates: Predicate, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Evaluate the AND of predicates over right-aligned indices: bool [T, S], or [B, 1, T, S]."""
    query = torch.arange(keys - queries, keys, device=device)[:, None]  # [T, 1]
    key = torch.arange(keys, device=device)[None, :]  # [1, S]
    return reduce(torch.logical_and, (predicate(query, key) for predicate in predicates))


def key_padding(keep: Tensor | None) -> Tensor | None:
    """Hide padding from every query: keep [B, S], True for a real token, becomes a mask [B, 1, 1, S]."""
    return None if keep is None else keep[:, None, None, :]
