"""Base classes of tasks with questions and answers: their splits and lengths, and `<bos>` and `<eos>` around questions.

Legend: N examples, L symbols of the question, T symbols of the answer.
"""

import dataclasses
import math
import sys
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.validation import NullIs, Size
from minitx.data.examples import Pairs, ended
from minitx.data.splits import SHARES, Split, content_hash, in_split, matched
from minitx.data.tasks.base import FIRST_SYMBOL_ID, Task, generator

MAX_FRUITLESS_SAMPLES = 20  # samples in a row without a new example, after which a split counts as exhausted
FRUITLESS_SAMPLES = 3  # after which the planned strata count as exhausted
MAX_SHUFFLED = 2**22  # symbols that are shuffled at a time
MAX_SAMPLED = 2**24  # symbols that are sampled at a time
MIN_SAMPLE = 256  # questions, of which small batches rarely need a second sample


@dataclass(kw_only=True)
class QuestionTask(Task):
    """Random questions with a function of the question as answer; a hash of the question decides its split."""

    enlarge: ClassVar[str] = "data.symbols or data.length"
    """The options to increase when there are too few different questions."""
    has_lengths: ClassVar[bool] = True
    """Whether of_length applies, and lengths have the same distribution in all splits."""

    add_bos: bool = False
    """Put `<bos>` before each question."""
    add_eos: bool = False
    """Put `<eos>` after each question: an end marker, which the end of an answer can be copied from."""
    stages: Annotated[tuple[dict[str, Any], ...], NullIs([])] = ()
    """A curriculum: other options of the task for the first steps of training, [{steps: 500, length: [1, 4]}, ...]."""

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Sample questions: ids and keep, each [N, L]."""
        raise NotImplementedError

    def sample_lengths(self, generator: torch.Generator, rows: int) -> Tensor:
        """Sample numbers in the range of the length_option, [N, 1]."""
        shortest, longest = getattr(self, str(self.length_option))
        return torch.randint(shortest, longest + 1, (rows, 1), generator=generator)

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Answers to questions: from ids and keep [N, L] to ids and keep [N, T]."""
        raise NotImplementedError

    @property
    def reach(self) -> tuple[int, int]:
        """`longest` with `<bos>` and `<eos>` of the question."""
        return self.longest[0] + self.add_bos + self.add_eos, self.longest[1]

    def divide(self, question: list[int]) -> tuple[list[int], list[int]]:
        """All of a question is read first, with its `<bos>` and `<eos>`."""
        special = self.vocabulary.special
        return [*[special.bos] * self.add_bos, *question, *[special.eos] * self.add_eos], []

    def of_length(self, length: int) -> Self:
        """The same task with questions of one length only; raises ConfigError if no question is that long."""
        return dataclasses.replace(self, **{str(self.length_option): (length, length)})  # type: ignore[arg-type]

    def batch(self, generator: torch.Generator, size: int) -> Pairs:
        """Sample training examples, none of them held out."""
        return self.sample(generator, size, "training", distinct=False)

    def examples(self, split: Split, limit: int | None = None) -> Pairs:
        """Distinct held-out examples, sampled with the split's own seed. Lengths are distributed as in training, but a
        length with fewer questions has only these, and makes the set smaller."""
        return self.sample(generator(*split.encode()), self.held_out(split, limit), split, distinct=True)

    def answered(self, source: Tensor, keep: Tensor) -> Pairs:
        """Questions [N, L] with their answers; override it to write questions in another form."""
        return Pairs(source, keep, *self.answer(source, keep))

    def deciding(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The part [N, K] of questions [N, L] that decides their split; by default the whole question."""
        return source, keep

    def strata(self, source: Tensor, keep: Tensor) -> Tensor:
        """The stratum of each question, int64 [N]; its share is the same in every split. By default its length."""
        return keep.sum(dim=1)

    def padded(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Replace ids [..., L] after the first lengths [..., 1] by padding: ids and keep."""
        keep = torch.arange(ids.size(-1)) < lengths  # [..., L]
        return torch.where(keep, ids, self.vocabulary.special.pad), keep

    def sample(self, generator: torch.Generator, size: int, split: Split, distinct: bool) -> Pairs:
        """Sample until `size` examples of a split are found; distinct ones may be fewer, if there are no more.

        The strata of the first questions sampled, of any split, are the plan; each is filled with a question of the
        split. If a stratum has none, or no more, another is planned; in all, a distinct set plans its full size.
        """
        found: list[tuple[Tensor, Tensor]] = []
        seen, plan = np.empty(0, dtype=np.int64), torch.empty(0, dtype=torch.long)
        left = max(size, self.held_out(split)) if distinct else sys.maxsize  # strata that may still be planned
        stratified, fruitless = self.has_lengths and self.sampling > 1, 0
        while size and fruitless < MAX_FRUITLESS_SAMPLES and (len(plan) or left):
            rows = int(size / SHARES[split] * 1.1) + 16
            if stratified:
                rows = max(MIN_SAMPLE, int((size + math.isqrt(100 * size)) / SHARES[split]))
            ids, keep, strata, planned = self._sampled(generator, rows, split, stratified)
            if not len(plan):
                plan = planned[: min(rows if fruitless else size, left)]
                left -= len(plan)
            chosen = torch.arange(len(ids))
            if distinct:  # the first row of each hash that was not seen before
                hashes = content_hash(ids, keep).numpy()
                first = np.sort(np.unique(hashes, return_index=True)[1])
                chosen = torch.from_numpy(first[~np.isin(hashes[first], seen)])
            match = matched(plan, strata[chosen])
            chosen = chosen[match[match >= 0][:size]]
            seen = np.append(seen, hashes[chosen]) if distinct else seen
            found.append((ids.index_select(0, chosen), keep.index_select(0, chosen)))
            size -= len(chosen)
            fruitless = 0 if len(chosen) else fruitless + 1
            plan = plan[match < 0][: size if len(chosen) or fruitless % FRUITLESS_SAMPLES else 0]
        if not any(len(ids) for ids, _ in found) or (not distinct and size):
            raise ConfigError(f"too few different examples to hold any out for {split}: make {self.enlarge} larger")
        ids, keep = found[0] if len(found) == 1 else (torch.cat(parts) for parts in zip(*found, strict=True))
        pairs, most = self.answered(ids, keep), self.longest[1]
        target, keep = pairs.target, pairs.target_keep
        kinds = [getattr(part, "dtype", type(part)) for part in (keep, target)]
        misfit = kinds != [torch.bool, torch.long] or target.shape != keep.shape or keep.shape[:-1] != (len(ids),)
        if misfit or bool(keep[:, most:].any()) or (distinct and bool((keep[:, 1:] > keep[:, :-1]).any())):
            must = f"a boolean keep [N, T], padded on the right, ids in int64, with at most {most} tokens (longest)"
            got = f"got keep {tuple(np.shape(keep))} of {kinds[0]} and ids {tuple(np.shape(target))} of {kinds[1]}"
            raise ValueError(f"{type(self).__name__}.answer must return ids and {must}, {got}, N {len(ids)}")
        return self._marked(pairs)

    def _sampled(self, generator: torch.Generator, rows: int, split: Split, stratified: bool) -> list[Tensor]:
        """Sample questions, a part at a time: ids, keep and strata of those in a split, and the strata of all."""
        found = []
        for part in torch.arange(rows).split(MAX_SAMPLED // self.longest[0] + 1):
            ids, keep = self.question(generator, len(part))
            strata = self.strata(ids, keep) if stratified else torch.zeros_like(part)
            chosen = in_split(content_hash(*self.deciding(ids, keep)), split).nonzero()[:, 0]
            found.append([*(tensor.index_select(0, chosen) for tensor in (ids, keep, strata)), strata])
        return found[0] if len(found) == 1 else [torch.cat(parts) for parts in zip(*found, strict=True)]

    def _marked(self, pairs: Pairs) -> Pairs:
        """Put `<bos>` and `<eos>` around questions, as divide does."""
        special, ids, keep = self.vocabulary.special, pairs.source, pairs.source_keep
        if self.add_eos:
            ids, keep = ended(ids, keep, special.pad, special.eos), F.pad(keep, (1, 0), value=True)
        if self.add_bos:
            ids, keep = F.pad(ids, (1, 0), value=special.bos), F.pad(keep, (1, 0), value=True)
        return dataclasses.replace(pairs, source=ids, source_keep=keep)


@dataclass(kw_only=True)
class LengthTask(QuestionTask):
    """Questions of random length."""

    length_option: ClassVar[str | None] = "length"
    shortest: ClassVar[int] = 1

    length: tuple[int, int] = (1, 16)
    """Shortest and longest question, both included; all lengths are equally likely."""

    @property
    def longest(self) -> tuple[int, int]:
        """An answer is as long as its question."""
        return self.length[1], self.length[1]


@dataclass(kw_only=True)
class SequenceTask(LengthTask):
    """Sequences of random symbols, with a function of the sequence as answer."""

    symbols: Size = 10
    """Number of different symbols: "0", "1", ..."""
    distinct: bool = False
    """Whether no symbol occurs twice in a question."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distinct and self.symbols < (longest := self.length[1]):
            raise ConfigError(f"data.symbols must be at least {longest} for distinct symbols, got {self.symbols}")

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Strings of one length are equally likely."""
        lengths = self.sample_lengths(generator, rows)
        if self.distinct:
            parts = torch.arange(rows).split(max(1, MAX_SHUFFLED // self.symbols))
            shuffled = (torch.rand(len(part), self.symbols, generator=generator).argsort(dim=1) for part in parts)
            ids = torch.cat([part[:, : self.length[1]] for part in shuffled])
        else:
            ids = torch.randint(self.symbols, (rows, self.length[1]), generator=generator)
        return self.padded(FIRST_SYMBOL_ID + ids, lengths)
