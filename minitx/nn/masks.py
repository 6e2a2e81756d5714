"""Which query may look at which key: small predicates on indices, combined with AND. Knows nothing of positions.

Legend: B batch, T queries, S keys. A mask is bool, True = may attend, and broadcasts to [B, H, T, S].
An index is where a token stands in the tensor. Queries are right-aligned: query t of T has index S - T + t,
so the same predicate serves training (T = S), a prefill in pieces and one-token decoding (T = 1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

Predicate = Callable[[Tensor, Tensor], Tensor]
"""From query indices [T, 1] and key indices [1, S] to a bool mask [T, S], or [B, 1, T, S] where rows differ."""


def causal(query: Tensor, key: Tensor) -> Tensor:
    """A query sees itself and what came before it."""
    return key <= query


def window(size: int, *, causal: bool) -> Predicate:
    """A query sees the `size` keys nearest to it, itself included (Longformer, Beltagy et al. 2020).

    Causal: itself and the size - 1 before it. Bidirectional: half on each side, so `size` must be odd.
    """
    if not 1 <= size < 2**31:
        raise ValueError(f"model.window must be at least 1 (a query sees itself) and below 2^31, got {size}")
    if causal:
        return lambda query, key: (key > query - size) & (key <= query)
    if size % 2 == 0:
        raise ValueError(
            f"model.window must be odd where attention is bidirectional, got {size}: "
            "itself and the same number on each side"
        )
    half = size // 2
    return lambda query, key: (query - key).abs() <= half


def prefix(lengths: Tensor) -> Predicate:
    """Causal, but the first tokens see one another in both directions (prefix LM; Raffel et al. 2020).

    lengths [B]: how many tokens at the beginning of each row, padding among them included.
    """
    return lambda query, key: (key <= query) | (key < lengths[:, None, None, None])


def same_document(documents: Tensor) -> Predicate:
    """Several documents packed into one row do not see each other. documents [B, S]: a number for each token's."""
    return lambda query, key: documents[:, None, query] == documents[:, None, key]


def build(*predicates: Predicate, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """The AND of predicates over right-aligned indices: bool [T, S], or [B, 1, T, S]."""
    query = torch.arange(keys - queries, keys, device=device)[:, None]  # [T, 1]
    key = torch.arange(keys, device=device)[None, :]  # [1, S]
    return reduce(torch.logical_and, (predicate(query, key) for predicate in predicates))


def key_padding(keep: Tensor | None) -> Tensor | None:
    """No query sees padding. keep [B, S], True for a real token, becomes a mask [B, 1, 1, S]."""
    return None if keep is None else keep[:, None, None, :]


def combine(*masks: Tensor | None) -> Tensor | None:
    """The AND of the masks that are there; None when none is (everybody sees everybody)."""
    present = [mask for mask in masks if mask is not None]
    return reduce(torch.logical_and, present) if present else None


def visible(queries: int, keys: int, causal: bool, window: int | None, device: torch.device) -> Tensor | None:
    """The mask [T, S] of causality and window; None without either, and where the last query sees every key."""
    if window is not None:
        rules = [_window(window, causal=causal)]
    else:
        rules = [_causal] if causal and queries > 1 else []
    return build(*rules, queries=queries, keys=keys, device=device) if rules else None


_window, _causal = window, causal  # arguments have these names, too
