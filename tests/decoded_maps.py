"""Attention maps decoded in Python: the reverse of map_format.encode. In the package, only the page decodes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minitx.tensorboard.map_format import LEVELS, read_header, sizes, unpacked_pieces


def decode(items: Sequence[bytes]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The header, and the maps as weights: layers first, then extras."""
    header = read_header(items[0])
    shapes = sizes(header)
    levels = [b"".join(unpacked_pieces(item, shape)) for item, shape in zip(items[1:], shapes, strict=True)]
    maps = [np.frombuffer(part, np.uint8).reshape(shape) for part, shape in zip(levels, shapes, strict=True)]
    return header, [(part / np.float32(LEVELS)) ** 2 for part in maps]
