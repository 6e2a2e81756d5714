"""Tasks on strings of symbols.

Legend: N examples, L symbols of the question, T symbols of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minitx.data.tasks.base import SequenceTask, register


@register("copy")
@dataclass(kw_only=True)
class Copy(SequenceTask):
    """3 1 4 -> 3 1 4."""

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The question itself."""
        return source, keep


@register("reverse")
@dataclass(kw_only=True)
class Reverse(SequenceTask):
    """3 1 4 -> 4 1 3."""

    def answer(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Place t of the answer is place length - 1 - t of the question."""
        places = keep.sum(dim=1, keepdim=True) - 1 - torch.arange(source.size(1))  # [N, L]
        return source.gather(1, places.clamp(min=0)).masked_fill(~keep, self.vocabulary.special.pad), keep
