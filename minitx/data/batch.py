"""A batch: what a model reads and what it should predict.

Legend: N examples, S source symbols, T target symbols. Labels of IGNORE are not predicted.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

IGNORE = -100
"""The label of a place where nothing is to be predicted; torch's own default."""


class Batch(NamedTuple):
    """What a model reads and what it should say; what an architecture does not need is None."""

    src: Tensor | None  # [N, S], for an encoder
    src_keep: Tensor | None  # [N, S], True for a real token
    tgt: Tensor | None  # [N, T], for a decoder
    tgt_keep: Tensor | None  # [N, T]; None where causality alone hides the padding, which stands on the right
    labels: Tensor  # [N, T], the token after each tgt token, or the answer at each src token
    prefix: Tensor | None = None  # [N], how many tgt tokens are the question, <sep> included; for a prefix LM
    documents: Tensor | None = None  # [N, T], a number for each token's, where packed documents do not see each other
    step_labels: Tensor | None = None  # [], labels in all batches of an optimiser step of several, in this process

    def inputs(self) -> tuple[Tensor | None, ...]:
        """The arguments of the model's forward."""
        packed = () if self.documents is None else (self.documents,)
        if self.src is None:
            return self.tgt, self.tgt_keep, None, self.prefix, *packed
        if self.tgt is None:
            return self.src, self.src_keep, *packed
        return self.src, self.tgt, self.src_keep, self.tgt_keep
