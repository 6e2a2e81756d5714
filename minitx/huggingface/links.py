"""Correspondence of tensors in minitx and in Hugging Face files: one table for import and export."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Conversion = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Link(NamedTuple):
    """Tensors of minitx and the Hugging Face tensors with the same content."""

    names: tuple[str, ...]
    hf_names: tuple[str, ...]
    from_hf: Conversion
    to_hf: Conversion


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def single(
    name: str,
    hf_name: str,
    from_hf: Callable[[Tensor], Tensor] = _unchanged,
    to_hf: Callable[[Tensor], Tensor] = _unchanged,
) -> Link:
    """One tensor, converted in each direction by a function."""
    return Link((name,), (hf_name,), lambda tensors: [from_hf(tensors[0])], lambda tensors: [to_hf(tensors[0])])


def transposed(name: str, hf_name: str) -> Link:
    """A matrix that Hugging Face stores as [in, out]."""
    return single(name, hf_name, torch.t, torch.t)


def scaled(name: str, hf_name: str, factor: float) -> Link:
    """The tensor of minitx is `factor` times that of Hugging Face."""
    return single(name, hf_name, lambda tensor: tensor * factor, lambda tensor: tensor / factor)


def module(name: str, hf_name: str, weight: Callable[[str, str], Link] = single, bias: bool = True) -> Iterator[Link]:
    """Weight and bias of a module."""
    yield weight(f"{name}.weight", f"{hf_name}.weight")
    if bias:
        yield single(f"{name}.bias", f"{hf_name}.bias")


def layers(
    count: int | None,
    name: str,
    hf_name: str,
    modules: Mapping[str, str],
    weight: Callable[[str, str], Link] = single,
    bias: bool = True,
) -> Iterator[Link]:
    """The same modules, minitx to Hugging Face, in each of `count` layers `name.0`, `name.1`, ..."""
    for i in range(count or 0):
        for part, hf_part in modules.items():
            yield from module(f"{name}.{i}.{part}", f"{hf_name}.{i}.{hf_part}", weight, bias)
