"""Tasks on strings of symbols.

Legend: N examples, L symbols of the question, T symbols of the answer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minitx.data.tasks.base import register
from minitx.data.tasks.question_tasks import SequenceTask


@register("copy")
@dataclass(kw_only=True)
class Copy(SequenceTask):
    """3 1 4 -> 3 1 4."""

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        return source, keep


@register("reverse")
@dataclass(kw_only=True)
class Reverse(SequenceTask):
    """3 1 4 -> 4 1 3."""

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Token t of the answer is token length - 1 - t of the question."""
        lengths = keep.sum(dim=1, keepdim=True)  # [N, 1]
        index = lengths - 1 - torch.arange(source.size(1))  # [N, L]
        return self.padded(source.gather(1, index.clamp(min=0)), lengths)
