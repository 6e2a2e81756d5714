"""Which tensors of theirs are which of ours, in both directions: one table serves import and export.

Legend: D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Link(NamedTuple):
    """Tensors of ours that hold what tensors of theirs hold."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    read: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    """From theirs to ours."""
    write: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    """From ours to theirs."""


def same(ours: str, theirs: str) -> Link:
    """One tensor under two names."""
    return Link((ours,), (theirs,), lambda parts: parts, lambda parts: parts)


def transposed(ours: str, theirs: str) -> Link:
    """A matrix that they keep as [in, out]."""
    return Link((ours,), (theirs,), lambda parts: [parts[0].mT], lambda parts: [parts[0].mT])


def scaled(ours: str, theirs: str, factor: float) -> Link:
    """Ours is theirs times a factor."""
    return Link((ours,), (theirs,), lambda parts: [parts[0] * factor], lambda parts: [parts[0] / factor])


def joined(ours: Sequence[str], theirs: str, by_column: bool = False) -> Link:
    """Several of ours, equally large, along the last dimension of one of theirs; transposed when it is a matrix."""

    def read(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [piece.mT if by_column else piece for piece in parts[0].chunk(len(ours), dim=-1)]

    def write(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([piece.mT if by_column else piece for piece in parts], dim=-1)]

    return Link(tuple(ours), (theirs,), read, write)


def behind(ours: str, theirs: str, rows: int) -> Link:
    """A table of theirs with rows in front that are not used."""

    def write(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat((parts[0].new_zeros(rows, parts[0].size(1)), parts[0]))]

    return Link((ours,), (theirs,), lambda parts: [parts[0][rows:]], write)


def module(ours: str, theirs: str, weight: Callable[[str, str], Link] = same, bias: bool = True) -> Iterator[Link]:
    """Weight and bias of a module."""
    yield weight(f"{ours}.weight", f"{theirs}.weight")
    if bias:
        yield same(f"{ours}.bias", f"{theirs}.bias")


def modules(
    ours: str, theirs: str, names: Mapping[str, str], bias: bool = True, without_bias: Sequence[str] = ()
) -> Iterator[Link]:
    """Modules by name, ours to theirs, each below the beginning of a name; some of them may have no bias."""
    for own, their in names.items():
        yield from module(f"{ours}.{own}", f"{theirs}.{their}", bias=bias and own not in without_bias)
