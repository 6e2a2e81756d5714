"""A decoder that generates a script, and checks that each row reads its own tokens."""

import torch
from torch import Tensor

VOCABULARY, PAD = 14, 0


class Pages:
    """A fake cache with the numbers of the rows that are still in the batch."""

    def __init__(self, rows: list[int]) -> None:
        self.rows, self.length = rows, 0

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]


class Scripted:
    """Prefers script[row][n] at its n-th step, and repeats the last token; a source has the number of each row.
    Records the source of each new cache, and what each step reads."""

    def __init__(self, *script: list[int]) -> None:
        self.script = script
        self.sources: list[list[int]] = []
        self.reads: list[tuple[list[list[int]], list[list[bool]] | None]] = []
        self.longest = 0  # of its caches

    def start(self, *source: Tensor) -> Pages:
        self.sources.append(source[0].flatten().tolist() if source else [*range(len(self.script))])
        return Pages(self.sources[-1])

    def step(self, ids: Tensor, cache: Pages, keep: Tensor | None = None) -> Tensor:
        assert len(ids) == len(cache.rows), "the cache and the tokens are of the same rows"
        count, logits = len(self.reads), torch.zeros(*ids.shape, VOCABULARY)
        for place, row in enumerate(cache.rows):
            words = [*self.script[row], *self.script[row][-1:] * count]
            assert not count or ids[place, -1] in (words[count - 1], PAD), "each row reads its own latest token"
            logits[place, -1, words[count]] = 3.0
        cache.length += ids.size(1)
        self.longest = max(self.longest, cache.length)
        self.reads.append((ids.tolist(), None if keep is None else keep.tolist()))
        return logits
