"""Linear maps of a decoding step with their weights in the layout of oneDNN.

The products with the weights take most of a step of a larger model. On a CPU torch leaves those in fp32 to MKL, which
reads a weight as the model holds it; oneDNN, in fp32 and bf16, is often faster with a copy in a layout of its own. That
depends on the processor, the number of threads and the sizes, and is measured, in a few milliseconds for each size.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_WEIGHT = 2**16
"""Numbers in the smallest weight that is measured. A product with fewer takes less time than a call of oneDNN."""
MAX_COPIED = 2**28
"""Numbers in all copies for one model, 1 GiB in fp32. Further weights are left to torch."""
LAYOUT_ROWS = 64
"""Rows for which oneDNN chooses the layout. It is as fast as any other for one row and for 512."""
TOKENS_PER_COPY = 64
"""Steps that share the time of a copy: weights are copied for each text, because they may have changed."""
RACE_SECONDS = 0.003
"""Minimum duration of the race for one size."""


class PackedLinear:
    """A linear map with a copy of its weight [out, in] in oneDNN's layout."""

    __name__ = "linear"  # for torch.fx

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.update()

    def update(self) -> None:
        """Copy the weight, which may have changed in place."""
        self._copy = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), LAYOUT_ROWS)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute F.linear, up to rounding."""
        return torch.ops.mkldnn._linear_pointwise(x, self._copy, bias, "none", [], "")


class PackedLinears:
    """The linear maps of a model that are faster with packed weights."""

    def __init__(self) -> None:
        self.by_weight: dict[int, PackedLinear] = {}  # by its id
        self._is_faster: dict[tuple[Any, ...], bool] = {}  # by type, rows (up to a power of two), outputs and inputs

    def find(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> PackedLinear | None:
        """The packed map that computes F.linear of these arguments faster, or None."""
        known = type(weight) is nn.Parameter  # not computed by the step itself
        on_cpu = weight.is_cpu and x.dtype == weight.dtype and has_onednn(weight.dtype)
        own = self.by_weight.get(id(weight))
        free = MAX_COPIED - sum(each.weight.numel() for each in self.by_weight.values())
        if not (known and on_cpu and (own or MIN_WEIGHT <= weight.numel() <= free)):
            return None
        rows = x.numel() // weight.size(1)
        rounded = 1 << (rows - 1).bit_length()  # rows leave a batch: not every number of rows is measured
        size = str(weight.dtype), rounded, *weight.shape
        if size not in self._is_faster:
            self._is_faster[size] = is_faster(size, own or PackedLinear(weight), x, bias)
        if not self._is_faster[size]:
            return None
        return self.by_weight.setdefault(id(weight), own or PackedLinear(weight))


def has_onednn(dtype: torch.dtype) -> bool:
    """Whether torch has oneDNN here, for numbers of this type."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def is_faster(size: tuple[Any, ...], packed: PackedLinear, x: Tensor, bias: Tensor | None) -> bool:
    """Whether the packed weight is faster for a type and size, by measurements that processes share."""
    from minitx.hardware.races import decide, race  # an extra

    def measure() -> dict[str, float]:
        racers = {"torch": partial(F.linear, x, packed.weight, bias), "oneDNN": partial(packed, x, bias)}
        seconds = race({**racers, "copy": packed.update}, RACE_SECONDS)
        seconds["oneDNN"] += seconds.pop("copy") / TOKENS_PER_COPY
        return seconds

    return decide(["linear", *size], ["torch", "oneDNN"], measure)[0] == "oneDNN"
