"""Writing token by token: one loop for every model that can. It knows ids only, never text.

Legend: B batch, P prompt tokens, T written tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from minitx.generation.sampling import Chooser, greedy


class Cache(Protocol):
    """What generation needs to know of a model's cache."""

    length: int


class Steppable(Protocol):
    """What a model offers to generation."""

    def start(self, *source: Any) -> Any:
        """A fresh cache, after reading a source if the model has one."""

    def step(self, ids: Tensor, cache: Any, keep: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] after new tokens [B, T]."""


def stream(
    model: Steppable,
    ids: Tensor,
    *source: Tensor,
    max_new_tokens: int,
    eos: int,
    pad: int,
    keep: Tensor | None = None,
    choose: Chooser = greedy,
    context: int | None = None,
) -> Iterator[Tensor]:
    """Write until every row has ended, one column at a time.

    Args:
        model: has `start` and `step`.
        ids: the first tokens to read [B, P].
        source: the arguments of the model's `start`.
        max_new_tokens: the most tokens to write.
        eos: the id that ends a row.
        pad: the id written after a row has ended.
        keep: [B, P], False for padding on the left of ids.
        choose: from logits [B, V] to ids [B].
        context: tokens that the model may look back on. Once they are full, it reads the last half anew and goes on,
            so a text may grow past the length that the model was trained on. None: it looks back on everything.

    Yields:
        The next token of each row, [B].

    Raises:
        ValueError: max_new_tokens or context below 1.
    """
    for name, value in (("max_new_tokens", max_new_tokens), ("context", context)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    ended = torch.zeros(ids.size(0), dtype=torch.bool, device=ids.device)
    read, read_keep = ids, keep  # everything so far, for a fresh start
    cache: Cache | None = None
    for _ in range(max_new_tokens):
        with torch.inference_mode():
            if cache is None:
                cache = model.start(*source)
            elif context is not None and cache.length >= context:
                cache = model.start(*source)
                ids = read[:, -max(context // 2, 1) :]
                keep = None if read_keep is None else read_keep[:, -ids.size(1) :]
            new = choose(model.step(ids, cache, keep)[:, -1])
            new = new.masked_fill(ended, pad)
            ended = ended | (new == eos)
            ids, keep = new[:, None], None
            if context is not None:
                read = torch.cat((read, ids), dim=1)
                if read_keep is not None:
                    read_keep = torch.cat((read_keep, torch.ones_like(ids, dtype=torch.bool)), dim=1)
        yield new
        if ended.all():
            return


def generate(model: Steppable, ids: Tensor, *source: Tensor, **options: Any) -> Tensor:
    """All that stream yields, [B, T], T at most max_new_tokens; a row's <eos> is included. Arguments as there."""
    return torch.stack(list(stream(model, ids, *source, **options)), dim=1)
