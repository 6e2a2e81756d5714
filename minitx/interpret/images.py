"""Images of attention, from numpy and Pillow: palette images with labels, made in milliseconds."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from minitx.interpret.recording import KINDS
from minitx.tensorboard.map_format import escaped, shortened

if TYPE_CHECKING:
    from minitx.interpret.attention_maps import AttentionMaps

CELL = 22
"""Side of one weight in pixels, for short sequences; long ones get smaller cells."""
MAX_SIDE = 832
"""Maximum side of a head in pixels, unless one pixel for each weight needs more."""
FONT_SIZE = 12
_MARGIN = 6
_COLOURS = 240  # palette entries for weights
_GREYS = 256 - _COLOURS  # the rest, from background to text, for antialiasing

_TEXT_LEVELS = (_COLOURS + np.arange(256) * ((_GREYS - 1) / 255)).round().astype(np.uint8)  # entries by intensity

# Anchors of a dark-to-bright ramp similar to magma: monotone in lightness, so that it also works in greyscale.
RAMP = ((0, 0, 4), (40, 17, 89), (114, 31, 129), (183, 55, 121), (241, 96, 93), (254, 176, 120), (252, 253, 191))


def pictures(maps: "AttentionMaps", example: int = 0) -> Iterator[tuple[str, int, Image.Image]]:
    """Yield kind, layer from 1, and an image of its heads side by side."""
    for kind in KINDS:
        for number, (weights, queries, keys, _) in enumerate(maps.layers(kind, example), start=1):
            yield kind, number, heads_image(weights.numpy(), queries, keys)


@cache
def _palette() -> list[int]:
    anchors = np.array(RAMP, dtype=float)
    steps = np.linspace(0, len(anchors) - 1, _COLOURS)
    colours = np.stack([np.interp(steps, range(len(anchors)), channel) for channel in anchors.T], axis=1)
    greys = np.linspace((255, 255, 255), (40, 40, 40), _GREYS)
    return np.concatenate([colours, greys]).round().astype(int).flatten().tolist()


@cache
def _font() -> ImageFont.FreeTypeFont:
    """DejaVu Sans, bundled with matplotlib: Pillow's own font lacks umlauts and the symbols of tokenizers."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", FONT_SIZE)


def heads_image(weights: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> Image.Image:
    """All heads [H, T, S] of one layer side by side, with labels: T queries down, S keys across.

    A palette image. Brightness is the square root of the weight, as in the Attention tab.
    """
    rows, columns = [token_label(token) for token in rows], [token_label(token) for token in columns]
    cell = max(1, min(CELL, MAX_SIDE // max(weights.shape[1:])))
    left = max(map(_width, rows)) + 2 * _MARGIN
    widest = max(map(_width, columns))
    top = (FONT_SIZE if widest < cell else widest) + FONT_SIZE + 2 * _MARGIN
    frame = _frame(cell, rows, columns, left, top)  # the labels are the same for all heads
    text = Image.fromarray(np.tile(np.asarray(frame), len(weights)))
    corners = range(left, text.width, frame.width)
    for number, x in enumerate(corners, start=1):
        ImageDraw.Draw(text).text((x, 2), f"head {number}", fill=255, font=_font())
    pixels = _TEXT_LEVELS[np.asarray(text)]
    levels = (np.sqrt(np.nan_to_num(weights).clip(0, 1)) * (_COLOURS - 1)).round().astype(np.uint8)
    for x, head in zip(corners, levels.repeat(cell, axis=1).repeat(cell, axis=2), strict=True):
        pixels[top : top + head.shape[0], x : x + head.shape[1]] = head
    image = Image.fromarray(pixels)
    image.putpalette(_palette())
    return image


def _frame(cell: int, rows: list[str], columns: list[str], left: int, top: int) -> Image.Image:
    """The labels of one head as text intensities: queries on the left, keys rotated above."""
    width, height = len(columns) * cell, len(rows) * cell
    frame = Image.new("L", (left + width + 2 * _MARGIN, top + height + _MARGIN))
    draw = ImageDraw.Draw(frame)
    upright = all(_width(column) < cell for column in columns)
    every = -(-FONT_SIZE // cell)  # if cells are smaller than text, only every n-th has a label
    for row in range(0, len(rows), every):
        draw.text((left - 4, top + row * cell + cell // 2), rows[row], fill=255, font=_font(), anchor="rm")
    for column in range(0, len(columns), every):
        label = Image.new("L", (_width(columns[column]) + 2, FONT_SIZE + 3))
        ImageDraw.Draw(label).text((0, label.height // 2), columns[column], fill=255, font=_font(), anchor="lm")
        if not upright:
            label = label.transpose(Image.Transpose.ROTATE_90)
        place = left + column * cell + (cell - label.width) // 2, top - label.height - 2
        frame.paste(255, place, label)  # the mask keeps the text of labels that overlap
    return frame


def token_label(token: str, longest: int = 12) -> str:
    """A printable label: white space and control characters escaped, long tokens cut."""
    return shortened(escaped(token.replace(" ", "␣") if token.isspace() else token), longest)


def _width(text: str) -> int:
    return round(_font().getlength(text))
