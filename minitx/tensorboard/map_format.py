"""Attention maps as bytes: what training writes, and what the Attention tab and the offline page show. No torch here.

One kind of attention of one example at one step is a list of byte strings: first a header as JSON, then for each layer
its weights [H, T, S], and then each extra map [1, T, S], as gzipped uint8 of 255 x sqrt(weight): a linear byte would
turn most of the small weights to nothing. A shown weight is off by at most 1/255, and less where it is small.

Legend: L layers, H heads, T queries, S keys.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minitx.config.errors import ConfigError

VERSION = 1
KINDS = ("encoder", "decoder", "cross")
LONGEST_LABEL = 200
"""Characters of a token that are kept: more than anybody reads, less than what would break a page."""
LEVELS = 255
LARGEST = 2**28
"""Bytes of one unpacked map, at most: no header that somebody else wrote makes us ask for more."""


class Statistic(NamedTuple):
    """One number for each head."""

    name: str
    meaning: str  # in a sentence, with its reference
    pattern: bool  # whether a value near 1 names what a head does
    values: list[list[float | None]]  # [L][H]; None where it says nothing


NAMED = 0.5
"""A head bears the name of a pattern that holds at least this share of its weight."""


class Named(NamedTuple):
    """What a head does."""

    pattern: str
    value: float  # from NAMED to 1


def strongest(statistics: Sequence[Statistic]) -> list[list[Named | None]]:
    """For each layer and head the pattern with the largest value, None where none reaches NAMED."""
    patterns = [statistic for statistic in statistics if statistic.pattern]
    if not statistics:
        return []
    named: list[list[Named | None]] = []
    for layer, heads in enumerate(statistics[0].values):
        named.append([])
        for head in range(len(heads)):
            values = [Named(part.name, value) for part in patterns if (value := part.values[layer][head]) is not None]
            best = max(values, key=lambda candidate: candidate.value, default=None)
            named[-1].append(best if best is not None and best.value >= NAMED else None)
    return named


def encode(
    kind: str,
    queries: Sequence[str | None],
    keys: Sequence[str | None],
    layers: Sequence[np.ndarray],
    statistics: Sequence[Statistic] = (),
    extras: Mapping[str, np.ndarray] | None = None,
) -> list[bytes]:
    """Maps as bytes.

    Args:
        kind: one of KINDS.
        queries: labels of the T queries; None is padding.
        keys: labels of the S keys; None is padding.
        layers: weights [H, T, S] of each layer.
        statistics: of its heads.
        extras: further maps [T, S] by name, such as rollout.

    Returns:
        The header and the gzipped maps, as decode takes them.
    """
    extras = extras or {}
    header = {
        "version": VERSION,
        "kind": kind,
        "queries": [_cut(label) for label in queries],
        "keys": [_cut(label) for label in keys],
        "heads": [len(weights) for weights in layers],
        "extras": list(extras),
        "statistics": [{**statistic._asdict(), "values": _finite(statistic.values)} for statistic in statistics],
    }
    maps = [*layers, *(weights[None] for weights in extras.values())]
    return [json.dumps(header, allow_nan=False).encode(), *(_packed(weights) for weights in maps)]


def _cut(label: str | None) -> str | None:
    return label if label is None or len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"


def _finite(values: list[list[float | None]]) -> list[list[float | None]]:
    """What JSON can say: a model whose training went astray has no statistics, and goes on being logged."""
    return [[value if value is None or math.isfinite(value) else None for value in layer] for layer in values]


def _packed(weights: np.ndarray) -> bytes:
    levels = (np.sqrt(np.nan_to_num(weights).clip(0, 1)) * LEVELS).round().astype(np.uint8)
    return gzip.compress(levels.tobytes(), compresslevel=6, mtime=0)


def read_header(item: bytes) -> dict[str, Any]:
    """The header, checked: what a page may rely on, with labels of no more than LONGEST_LABEL characters.

    Raises:
        ConfigError: not a header of this format, or of a version that is not known here.
    """
    try:
        header = json.loads(item)
        version = header["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError("this is no attention map of minitx") from None
    if version != VERSION:
        told = repr(version)[:20]
        raise ConfigError(f"attention maps of format {told} cannot be shown here, which knows format {VERSION}")
    try:
        _check(header)
    except (KeyError, TypeError, AttributeError, OverflowError):
        raise ConfigError("the header of these attention maps is damaged") from None
    labels = {side: [_cut(label) for label in header[side]] for side in ("queries", "keys")}
    return {**header, **labels}


def _check(header: dict[str, Any]) -> None:
    """Types and sizes of a header; TypeError and its like where they do not fit."""
    _must(header["kind"] in KINDS)
    for labels in (header["queries"], header["keys"]):
        _must(isinstance(labels, list))
        _must(all(label is None or isinstance(label, str) for label in labels))
    heads = header["heads"]
    _must(isinstance(heads, list))
    _must(all(type(count) is int and count > 0 for count in heads))
    _must(isinstance(header["extras"], list))
    _must(all(isinstance(name, str) for name in header["extras"]))
    _must(isinstance(header["statistics"], list))
    for statistic in header["statistics"]:
        _must(isinstance(statistic["name"], str))
        _must(isinstance(statistic["meaning"], str))
        _must(isinstance(statistic["pattern"], bool))
        _must([len(layer) for layer in statistic["values"]] == heads)
        for value in (value for layer in statistic["values"] for value in layer):
            _must(value is None or (type(value) in (int, float) and math.isfinite(value)))


def _must(fit: bool) -> None:
    """An assert that stays when Python optimises."""
    if not fit:
        raise TypeError


def sizes(header: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """The shape of each map behind a header: layers first, then extras."""
    rows, columns = len(header["queries"]), len(header["keys"])
    return [(count, rows, columns) for count in [*header["heads"], *(1 for _ in header["extras"])]]


def decode(items: Sequence[bytes]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The header, and the maps as weights: layers first, then extras.

    Raises:
        ConfigError: damaged, or of a version that is not known here.
    """
    if not items:
        raise ConfigError("this is no attention map of minitx")
    header = read_header(items[0])
    shapes = sizes(header)
    if len(items) != 1 + len(shapes):
        raise ConfigError(f"{len(shapes)} attention maps were announced, {len(items) - 1} are there")
    return header, [
        _unpacked(item, shape, number) for number, (item, shape) in enumerate(zip(items[1:], shapes, strict=True))
    ]


def _unpacked(item: bytes, shape: tuple[int, int, int], number: int) -> np.ndarray:
    levels = np.frombuffer(unpacked(item, shape, number), dtype=np.uint8).reshape(shape)
    weights: np.ndarray = (levels / np.float32(LEVELS)) ** 2
    return weights


def unpacked(item: bytes, shape: tuple[int, int, int], number: int) -> bytes:
    """The levels of a map, a byte each, never more of them than its shape has: gzip can hold far more than it shows.

    Args:
        item: gzipped.
        shape: of the map, as sizes tells it.
        number: which map it is, for the message.

    Raises:
        ConfigError: not gzip, cut off, of another size, or larger than LARGEST.
    """
    size = math.prod(shape)
    if size > LARGEST:
        raise ConfigError(f"attention map {number} is too large to be shown: {size} weights, at most {LARGEST}")
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: gzip
    try:
        levels = stream.decompress(item, size + 1)  # one more than there should be, so that no limit is hit
    except (zlib.error, TypeError):
        raise ConfigError(f"attention map {number} is damaged") from None
    if len(levels) != size or not stream.eof or stream.unused_data:
        raise ConfigError(f"attention map {number} is damaged: it does not hold the {size} weights of its header")
    return levels
