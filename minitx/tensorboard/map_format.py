"""The format of attention maps in event files, in the Attention tab and in the offline page. No torch here.

The maps of one kind of attention of one example at one step are a list of byte strings: a JSON header, then for each
layer its weights [H, T, S], then each extra map [1, T, S], as gzipped uint8 of 255 x sqrt(weight). A linear byte would
round most small weights to zero; with the root, the error is at most 1/255, and less for small weights.

Legend: L layers, H heads, T queries, S keys.
"""

import gzip
import json
import math
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minitx.config.errors import ConfigError

VERSION = 1
MAX_LABEL_LENGTH = 200
"""Maximum number of characters of a token; longer ones are cut."""
LEVELS = 255
MAX_MAP_BYTES = 2**28
"""Maximum size of one unpacked map."""
MAX_HEADER_BYTES = 2**20
MAX_LABELS = 2**16
"""Maximum number of labels of one side."""
MAX_MAPS = 4096
"""Maximum number of maps of one event."""
SEPARATORS = None, "", " "
"""Separators of the labels in their text; None if it is unknown, and absent from earlier files."""
PIECE_BYTES = 2**12
"""Packed bytes that are unpacked at once, to at most 1032 times as many."""
PATTERN_FROM = 0.5
"""A head follows a pattern with at least this share of its weight."""


def escaped(text: str, kept: str = "") -> str:
    """Escape the control characters of a text, except `kept`, and its direction characters, which would reorder it."""
    return "".join(char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in text)


def visible(token: str) -> str:
    """A token with visible whitespace, in one line without tabs."""
    if token.isspace() or not token:
        return token.replace(" ", "␣") if set(token) == {" "} else ascii(token)
    return escaped(token)


def shortened(text: str, longest: int) -> str:
    """A text of at most `longest` characters; a longer one ends in an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


class Statistic(NamedTuple):
    """One number for each head."""

    name: str
    meaning: str  # in a phrase, with its reference
    pattern: bool  # whether a value near 1 names the pattern of a head
    values: list[list[float | None]]  # [L][H], finite; None if undefined


class Named(NamedTuple):
    """The pattern of a head."""

    pattern: str
    value: float  # from PATTERN_FROM to 1


def strongest(statistics: Sequence[Statistic]) -> list[list[Named | None]]:
    """For each layer and head the pattern with the largest value, None if none reaches PATTERN_FROM."""

    def best(layer: int, head: int) -> Named | None:
        values = ((part.name, part.values[layer][head]) for part in statistics if part.pattern)
        named = [Named(name, value) for name, value in values if value is not None and value >= PATTERN_FROM]
        return max(named, key=lambda candidate: candidate.value, default=None)

    shape = [len(heads) for heads in statistics[0].values] if statistics else []
    return [[best(layer, head) for head in range(count)] for layer, count in enumerate(shape)]


def encode(
    kind: str,
    queries: Sequence[str | None],
    keys: Sequence[str | None],
    layers: Sequence[np.ndarray],
    statistics: Sequence[Statistic] = (),
    extras: Mapping[str, np.ndarray] | None = None,
    separator: str | None = None,
) -> list[bytes]:
    """Encode maps as bytes: the header and the gzipped maps.

    Args:
        kind: encoder, decoder or cross; lens for the probability of the answer after each layer, S layers and no head.
        queries: T labels; None is padding.
        keys: S labels.
        layers: weights [H, T, S] of each layer.
        extras: further maps [T, S] by name, such as rollout.
        separator: one of SEPARATORS.
    """
    extras = extras or {}
    header = {
        "version": VERSION,
        "kind": kind,
        "queries": [_cut(label) for label in queries],
        "keys": [_cut(label) for label in keys],
        "heads": [len(weights) for weights in layers],
        "extras": list(extras),
        "statistics": [part._asdict() for part in statistics],
        **({} if separator is None else {"separator": separator}),
    }
    maps = [*layers, *(weights[None] for weights in extras.values())]
    return [json.dumps(header, allow_nan=False).encode(), *_packed(maps)]


def _cut(label: str | None) -> str | None:
    return None if label is None else shortened(label, MAX_LABEL_LENGTH)


def _packed(maps: Sequence[np.ndarray]) -> list[bytes]:
    """Pack each map; the levels of all are computed at once, because calls take most of the time of small maps."""
    shares = np.fmin(np.fmax(np.concatenate(maps), 0), 1)  # 0 for NaN
    levels = (np.sqrt(shares) * LEVELS).round().astype(np.uint8)
    parts = np.split(levels, np.cumsum([len(weights) for weights in maps[:-1]]))
    return [gzip.compress(part.tobytes(), compresslevel=6, mtime=0) for part in parts]


def read_header(item: bytes) -> dict[str, Any]:
    """Parse and check a header, and cut its labels to MAX_LABEL_LENGTH.

    Raises:
        ConfigError: not a header of this format, of an unknown version, or too large.
    """
    if len(item) > MAX_HEADER_BYTES:
        size = f"{len(item)} bytes, at most {MAX_HEADER_BYTES}"
        raise ConfigError(f"the header of these attention maps is too large: {size}")
    try:
        header = json.loads(item)
        version = header["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError("this is not an attention map of minitx") from None
    if version != VERSION:
        raise ConfigError(f"attention maps must have format {VERSION}, got format {repr(version)[:20]}")
    if not _is_valid(header):
        raise ConfigError("the header of these attention maps is damaged")
    return {**header, **{side: [_cut(label) for label in header[side]] for side in ("queries", "keys")}}


def _is_valid(header: dict[str, Any]) -> bool:
    match header:
        case {
            "kind": "encoder" | "decoder" | "cross" | "lens",
            "queries": [*queries],
            "keys": [*keys],
            "heads": [*heads],
            "extras": [*extras],
            "statistics": [*statistics],
        }:
            return (
                max(len(queries), len(keys)) <= MAX_LABELS
                and len(heads) + len(extras) <= MAX_MAPS
                and all(label is None or isinstance(label, str) for label in [*queries, *keys])
                and all(type(count) is int and count > 0 for count in heads)
                and all(isinstance(name, str) for name in extras)
                and all(_is_valid_statistic(statistic, heads) for statistic in statistics)
                and header.get("separator") in SEPARATORS
            )
    return False


def _is_valid_statistic(statistic: Any, heads: list[int]) -> bool:
    match statistic:
        case {"name": str(), "meaning": str(), "pattern": bool(), "values": [*layers]}:
            shape = [len(layer) if isinstance(layer, list) else None for layer in layers]
            return shape == heads and all(_is_number(value) for layer in layers for value in layer)
    return False


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) <= sys.float_info.max)


def sizes(header: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """The shape of each map of a header: layers first, then extras."""
    rows, columns = len(header["queries"]), len(header["keys"])
    return [(count, rows, columns) for count in [*header["heads"], *(1 for _ in header["extras"])]]


def unpacked_pieces(item: bytes, shape: tuple[int, int, int]) -> Iterator[bytes]:
    """Unpack a map in pieces of at most 4 MiB, and never more than its shape has: gzip may expand to far more.

    Raises:
        ConfigError: not gzip, truncated, of another size, or larger than MAX_MAP_BYTES.
    """
    size = left = math.prod(shape)
    if size > MAX_MAP_BYTES:
        raise ConfigError(f"this attention map is too large to be shown: {size} weights, at most {MAX_MAP_BYTES}")
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: gzip
    try:
        for start in range(0, len(item), PIECE_BYTES):
            piece = item[start : start + PIECE_BYTES]
            levels = stream.decompress(piece, left + 1)  # one more, to detect a longer stream
            left -= len(levels)
            if left < 0 or stream.unused_data:
                break
            yield levels
    except (zlib.error, TypeError):
        raise ConfigError("this attention map is damaged") from None
    if left or not stream.eof or stream.unused_data:
        raise ConfigError(f"this attention map is damaged: it does not hold the {size} weights of its header")
