"""A batch: the tensors that one forward and its loss need, and the base class of records of tensors.

Legend: N examples, S source tokens, T target tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from minitx.hardware.devices import moved

IGNORE = -100  # the label of a position without a target; torch's own default


@dataclass(eq=False)
class TensorRecord:
    """Named tensors with the example as their first dimension. A field that does not apply is None."""

    def __iter__(self) -> Iterator[Tensor]:
        """The tensors that are present, in the order of the fields."""
        return (part for part in vars(self).values() if part is not None)

    def __len__(self) -> int:
        """Number of examples."""
        return next(iter(self)).size(0)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same record with a function applied to every tensor."""
        return type(self)(**{name: None if part is None else function(part) for name, part in vars(self).items()})

    def to(self, device: torch.device | str) -> Self:
        """The same record on a device. A GPU copies from pinned memory while the CPU continues."""
        return self.map(lambda part: moved(part, device))

    def slice(self, start: int, end: int) -> Self:
        """Examples from start to end. A scalar belongs to the whole batch and is kept."""
        return self.map(lambda part: part[start:end] if part.dim() else part)


@dataclass(eq=False)
class Batch(TensorRecord):
    """Inputs and labels of a model; what an architecture does not read is None."""

    src: Tensor | None  # [N, S], for an encoder
    src_keep: Tensor | None  # [N, S], True for a real token
    tgt: Tensor | None  # [N, T], for a decoder
    tgt_keep: Tensor | None  # [N, T]; None if padding is on the right, where causality hides it
    labels: Tensor  # [N, T], the token after each tgt token, or the answer at each src token
    prefix: Tensor | None = None  # [N], tgt tokens of the question, <sep> included; for a prefix LM
    documents: Tensor | None = None  # [N, T], the document number of each token, if packed documents are isolated
    step_labels: Tensor | None = None  # [], number of labels in this process in all batches of an accumulated step

    def model_inputs(self) -> dict[str, Tensor]:
        """The keyword arguments of the model's forward."""
        if self.src is None:
            inputs = {"ids": self.tgt, "keep": self.tgt_keep, "prefix": self.prefix, "documents": self.documents}
        elif self.tgt is None:
            inputs = {"ids": self.src, "keep": self.src_keep, "documents": self.documents}
        else:
            inputs = {"src_ids": self.src, "tgt_ids": self.tgt, "src_keep": self.src_keep, "tgt_keep": self.tgt_keep}
        return {name: tensor for name, tensor in inputs.items() if tensor is not None}
