"""Which position each token is told to stand at. Knows nothing of schemes, which turn these ids into signals.

Legend: B batch, T tokens. An index is where a token stands in the tensor; its position id is what a scheme is told.
To add a way to number, subclass ConsecutiveIds, override `number` and register the class under the name that goes into
`model.position_ids.name`; it then works with every scheme.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from minitx.nn.errors import OptionError

POSITION_IDS: dict[str, type[ConsecutiveIds]] = {}
"""Every way to number by its name in the YAML."""

NO_TOKEN = -1
"""What stands in the place of padding when ids are numbered: it must not matter which token fills it."""

MOST_IDS = 2**24
"""The largest range that ids are drawn from: each draw shuffles all of it."""

Numbering = TypeVar("Numbering", bound="type[ConsecutiveIds]")


def register(name: str) -> Callable[[Numbering], Numbering]:
    """Make a way to number available as model.position_ids.name."""

    def add(numbering: Numbering) -> Numbering:
        POSITION_IDS[name] = numbering
        return numbering

    return add


def consecutive(
    length: int, keep: Tensor | None = None, device: torch.device | None = None, documents: Tensor | None = None
) -> Tensor:
    """0, 1, 2, ... over the real tokens of each row, so that padding on the left shifts nothing.

    Args:
        length: number of tokens T.
        keep: [B, T], True for a real token; None when every token is real.
        device: where to make the ids when there is no keep to tell.
        documents: [B, T], a number for each document of a packed row: counting begins anew where it changes.

    Returns:
        [B, T], or [1, T] without keep and documents. Padding shares the id of its left neighbour (0 before the first).
    """
    if keep is None:
        before = torch.arange(length, device=device)[None]  # how many real tokens stand before each one
    else:
        before = keep.long().cumsum(dim=1) - keep.long()
    ids = before if keep is None else before - (~keep).long()
    if documents is not None:
        begins = torch.ones_like(documents, dtype=torch.bool)
        begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
        ids = ids - torch.where(begins, before, 0).cummax(dim=1).values
    return ids.clamp(min=0)


@register("consecutive")
class ConsecutiveIds(nn.Module):
    """0, 1, 2, ... as every scheme was published with.

    Args:
        causal: whether the sequence is written from left to right: then the id of a token may not depend on what
            comes after it, nor on how much does.
    """

    max_len: int | None = None
    """The longest sequence that can be numbered; None for any."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self, ids: Tensor, keep: Tensor | None = None, documents: Tensor | None = None, fixed: bool = False
    ) -> Tensor:
        """Position ids of the tokens ids [B, T]: [B, T], or [1, T] where all rows are numbered alike.

        Args:
            ids: the tokens.
            keep: [B, T], True for a real token; None when all are.
            documents: [B, T], see consecutive.
            fixed: nothing at random, also in training; in evaluation nothing is anyhow. What a cache needs.
        """
        count = consecutive(ids.size(1), keep, ids.device, documents)
        if keep is not None:
            ids = ids.masked_fill(~keep, NO_TOKEN)
        return self.number(count, ids, fixed or not self.training)

    def number(self, count: Tensor, ids: Tensor, fixed: bool) -> Tensor:
        """From how many real tokens of its document stand before each one, count [B, T] or [1, T], to its id.

        ids [B, T] are the tokens, NO_TOKEN in the place of padding.
        """
        return count

    def room(self, table: int) -> int:
        """The longest sequence whose ids all stay below `table`, the size of a table of learned positions."""
        return table


@register("offset")
class OffsetIds(ConsecutiveIds):
    """Consecutive from a random start in training, from 0 after it (SHAPE; Kiyono et al. 2021).

    An absolute scheme meets ids past the training length that way, and cannot hold on to where a sequence starts.

    Args:
        largest: the largest start.
    """

    def __init__(self, causal: bool, largest: int = 100) -> None:
        super().__init__(causal)
        if not 0 <= largest <= MOST_IDS:
            raise OptionError(f"model.position_ids.largest must lie between 0 and {MOST_IDS:,}, got {largest}")
        self.largest = largest

    def number(self, count: Tensor, ids: Tensor, fixed: bool) -> Tensor:
        """One start for each sequence."""
        if fixed:
            return count
        return count + torch.randint(self.largest + 1, (ids.size(0), 1), device=ids.device)

    def room(self, table: int) -> int:
        """The last start needs a whole sequence behind it."""
        return table - self.largest


@register("randomized")
class RandomizedIds(ConsecutiveIds):
    """A sorted draw from a large range (Ruoss et al. 2023): the ids of long sequences are met while reading short ones.

    An encoder draws as many ids as a sequence has tokens. A decoder cannot know how many there will be, and in training
    must not be told, so it draws `longest` and hands them out from the smallest. In evaluation the draw is always the
    same one. Documents packed into one row share a draw: an encoder's has as many ids as the longest has tokens.

    Args:
        range: ids are drawn from 0 to range - 1, none twice.
        longest: the longest sequence that a decoder will read or write.
    """

    def __init__(self, causal: bool, range: int = 2048, longest: int = 256) -> None:
        super().__init__(causal)
        if range > MOST_IDS:
            raise OptionError(f"model.position_ids.range must be at most {MOST_IDS:,}, got {range}")
        if range < 1 or (causal and not 1 <= longest <= range):
            raise OptionError(
                "model.position_ids.longest must be at least 1 and at most model.position_ids.range, "
                f"got {longest} and {range}"
            )
        self.range = range
        self.max_len: int = longest if causal else range
        once = torch.randperm(range, generator=torch.Generator().manual_seed(0))
        self.register_buffer("once", once, persistent=False)  # the draw of every evaluation: any first n of it are one
        self.once: Tensor

    def number(self, count: Tensor, ids: Tensor, fixed: bool) -> Tensor:
        """The count-th smallest of the ids that were drawn."""
        rows, tokens = ids.shape
        seen = not torch.compiler.is_compiling()
        if seen and tokens > self.max_len and int(count.max()) >= self.max_len:
            key = "longest" if self.causal else "range"
            raise ValueError(
                f"a sequence of {int(count.max()) + 1} tokens is longer than model.position_ids.{key}, {self.max_len}"
            )
        size = self.max_len if self.causal else min(tokens, self.range)
        if fixed:
            drawn = self.once[None, :size]
        else:
            drawn = torch.rand(rows, self.range, device=ids.device).topk(size).indices  # [B, size], in random order
        if not self.causal:  # a shorter row draws fewer; what it does not draw goes to the end
            unused = torch.arange(size, device=ids.device) > count.amax(dim=1, keepdim=True)
            drawn = drawn.masked_fill(unused, self.range)
        drawn = drawn.sort(dim=1).values
        rows = max(drawn.size(0), count.size(0))
        return drawn.expand(rows, -1).gather(1, count.expand(rows, -1))

    def room(self, table: int) -> int:
        """Any sequence may be given any id of the range."""
        return self.max_len if table >= self.range else 0


@register("coupled")
class CoupledIds(ConsecutiveIds):
    """Counting begins anew after some tokens, so that things that belong together bear the same number.

    A question and its answer, or the digits of numbers written from the lowest one (position coupling, Cho et al. 2024;
    Abacus, McLeish et al. 2024). Such a token itself is 0, the next 1; a sequence begins as if behind one.

    Args:
        after: ids of the tokens after which counting begins anew. Left empty in a config, those that the task names.
    """

    def __init__(self, causal: bool, after: tuple[int, ...] = ()) -> None:
        super().__init__(causal)
        self.register_buffer("after", torch.tensor([*after], dtype=torch.long), persistent=False)
        self.after: Tensor

    def number(self, count: Tensor, ids: Tensor, fixed: bool) -> Tensor:
        """How far back the last such token stands, or the beginning of the document."""
        real = ids != NO_TOKEN
        place = real.long().cumsum(dim=1)
        begins = torch.where(real & (count == 0), place - 1, 0)
        return place - torch.where(torch.isin(ids, self.after), place, begins).cummax(dim=1).values

    def room(self, table: int) -> int:
        """The first token is 1."""
        return table - 1
