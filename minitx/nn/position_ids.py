"""Position ids: the number of each token that a position scheme uses. The schemes themselves are in positions.py.

Legend: B batch, T tokens. An index is where a token sits in the tensor; its position id is what a scheme uses.
To add a numbering, subclass ConsecutiveIds, override `number` and register the class under its
`model.position_ids.name`; it then works with every scheme.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitx.nn.errors import require
from minitx.nn.positions import registration

POSITION_IDS: dict[str, type["ConsecutiveIds"]] = {}
"""Every numbering by its name in the YAML."""
NO_TOKEN = -1  # in place of the token ids of padding while tokens are numbered, so that they have no effect
MAX_ID_RANGE = 2**24  # the largest range that ids are sampled from: each sample sorts all of it

register = registration(POSITION_IDS)
"""Decorator that makes a numbering available as model.position_ids.name."""


def consecutive(
    length: int, keep: Tensor | None = None, device: torch.device | None = None, documents: Tensor | None = None
) -> Tensor:
    """Count 0, 1, 2, ... over the real tokens of each row, so that padding on the left shifts nothing.

    keep [B, T] is True for a real token, documents [B, T] the document number of each token in packed rows: counting
    restarts where it changes. Returns [B, T], or [1, T] without these two. Padding has its left neighbour's id, or 0.
    """
    if keep is None:
        ids = before = torch.arange(length, device=device)[None]  # number of real tokens before each one
    else:
        before = keep.long().cumsum(dim=1) - keep.long()
        ids = before - (~keep).long()
    if documents is not None:
        begins = torch.ones_like(documents, dtype=torch.bool)
        begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
        ids = ids - torch.where(begins, before, 0).cummax(dim=1).values
    return ids if keep is None else ids.clamp(min=0)


@register("consecutive")
class ConsecutiveIds(nn.Module):
    """0, 1, 2, ..., as in the papers of all schemes.

    causal: whether tokens are generated from left to right. Then an id may not depend on later ones, or their number.
    """

    max_len: int | None = None
    """The longest sequence that can be numbered; None for any."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self, ids: Tensor, keep: Tensor | None = None, documents: Tensor | None = None, fixed: bool = False
    ) -> Tensor:
        """Position ids of the tokens ids [B, T]: [B, T], or [1, T] if all rows are numbered alike.

        keep and documents as for consecutive. fixed: not random in training either, which a cache needs.
        """
        count = consecutive(ids.size(1), keep, ids.device, documents)
        if keep is not None:
            ids = ids.masked_fill(~keep, NO_TOKEN)
        return self.number(count, ids, fixed or not self.training)

    def number(self, count: Tensor, ids: Tensor, fixed: bool) -> Tensor:
        """Map count, the number of real tokens of its document before each token, to its position id.

        count is [B, T] or [1, T]; ids [B, T] are the tokens, NO_TOKEN in place of padding.
        """
        return count

    def max_tokens(self, table_size: int) -> int:
        """The longest sequence whose ids fit a table of learned positions; 1 - n if one token needs n rows more."""
        return table_size


@register("offset")
class OffsetIds(ConsecutiveIds):
    """Consecutive from a random start in training, from 0 in evaluation (SHAPE; Kiyono et al. 2021).

    So an absolute scheme is trained on ids beyond the training length. The start is at most `largest`.
    """

    def __init__(self, causal: bool, largest: int = 100) -> None:
        super().__init__(causal)
        fits = 0 <= largest <= MAX_ID_RANGE
        require(fits, f"model.position_ids.largest must lie between 0 and {MAX_ID_RANGE:,}, got {largest}")
        self.largest = largest

    def number(self, count: Tensor, ids: Tensor, fixed: bool) -> Tensor:
        return count if fixed else count + torch.randint(self.largest + 1, (ids.size(0), 1), device=ids.device)

    def max_tokens(self, table_size: int) -> int:
        return table_size - self.largest  # a whole sequence must fit in after the largest start


@register("randomized")
class RandomizedIds(ConsecutiveIds):
    """A sorted sample from a large range (Ruoss et al. 2023): short sequences train the ids of long ones.

    An encoder samples as many ids as a sequence has tokens. While a decoder generates, that number is not known, and it
    must not be used in training: a decoder samples `longest` ids and assigns them from the smallest. Evaluation always
    uses the same sample. Documents packed into one row share a sample, an encoder's as large as the longest document.

    Args:
        range: ids are sampled from 0 to range - 1, none twice.
        longest: the longest sequence that a decoder reads or generates.
    """

    def __init__(self, causal: bool, range: int = 2048, longest: int = 256) -> None:
        super().__init__(causal)
        require(range <= MAX_ID_RANGE, f"model.position_ids.range must be at most {MAX_ID_RANGE:,}, got {range}")
        self.range = range
        self.max_len: int = longest if causal else range
        expected = f"must be at least 1 and at most model.position_ids.range, got {longest} and {range}"
        require(1 <= self.max_len <= range, f"model.position_ids.longest {expected}")
        order = torch.randperm(range, generator=torch.Generator().manual_seed(0))
        self.order: Tensor = nn.Buffer(order, persistent=False)  # any first n of it are a sample for evaluation

    def number(self, count: Tensor, ids: Tensor, fixed: bool) -> Tensor:
        rows, tokens = ids.shape
        wide = tokens > self.max_len and not torch.compiler.is_compiling()
        wide = wide and not (ids.is_cuda and torch.cuda.is_current_stream_capturing())  # which cannot read a number
        if wide and (longest := int(count.max()) + 1) > self.max_len:
            key = "longest" if self.causal else "range"
            raise ValueError(f"a sequence of {longest} tokens is longer than model.position_ids.{key}, {self.max_len}")
        size = self.max_len if self.causal else min(tokens, self.range)
        sample = self.order[None, :size]
        if not fixed:
            sample = torch.rand(rows, self.range, device=ids.device).topk(size).indices  # [B, size], in random order
        if not self.causal:  # a shorter row has a smaller sample; the rest moves to the end
            unused = torch.arange(size, device=ids.device) > count.amax(dim=1, keepdim=True)
            sample = sample.masked_fill(unused, self.range)
        return sample.sort(dim=1).values.take_along_dim(count, dim=1)

    def max_tokens(self, table_size: int) -> int:
        return self.max_len if table_size >= self.range else table_size - self.range + 1  # any sequence may get any id


@register("coupled")
class CoupledIds(ConsecutiveIds):
    """Counting restarts at some tokens, so that corresponding tokens have the same number.

    Examples are those of a question and its answer, or the digits of numbers written from the lowest one (position
    coupling, Cho et al. 2024; Abacus, McLeish et al. 2024). Counting starts at 1, or at 0 with one of these tokens.

    Args:
        after: ids of the tokens that are numbered 0, the next token 1. Empty in a config: those of the task.
        mirrored: count down after such a token, which gets its distance from the one before it, or from the start:
            1 2 3 4 3 2 1 for a question of three tokens, a separator and the reversed question.
    """

    def __init__(self, causal: bool, after: tuple[int, ...] = (), mirrored: bool = False) -> None:
        super().__init__(causal)
        fits = all(-1 <= token < 2**31 for token in after)  # -1: a token that an imported tokenizer lacks
        require(fits, f"model.position_ids.after must be ids of tokens, got {[*after]}")
        self.mirrored = mirrored
        self.after: Tensor = nn.Buffer(torch.tensor([*after], dtype=torch.long), persistent=False)

    def number(self, count: Tensor, ids: Tensor, fixed: bool) -> Tensor:
        real = ids != NO_TOKEN
        place = real.long().cumsum(dim=1)
        begins, restarts = torch.where(real & (count == 0), place - 1, 0), torch.isin(ids, self.after)
        start = torch.where(restarts, place, begins).cummax(dim=1).values
        if not self.mirrored:
            return place - start
        before = torch.where(count == 0, place, F.pad(start[:, :-1], (1, 0)))  # where counting began before it restarts
        before = torch.where(restarts, before, begins).cummax(dim=1).values
        return (2 * start - before - place).abs()

    def max_tokens(self, table_size: int) -> int:
        return table_size - 1  # the first token is 1
