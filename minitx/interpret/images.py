"""Pictures of attention, from numpy and Pillow: palette images with labels, made in milliseconds."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

CELL = 14
"""Side of one weight in pixels, for short sequences; long ones get smaller cells."""
LARGEST = 512
"""No head is drawn larger than this many pixels on a side, unless a pixel a weight needs more."""
FONT_SIZE = 10
_MARGIN = 6
_COLOURS = 240  # palette entries for weights
_GREYS = 256 - _COLOURS  # the rest, from paper to ink, for smooth letters

_INKS = (_COLOURS + np.arange(256) * ((_GREYS - 1) / 255)).round().astype(np.uint8)
"""Palette number of each strength of ink."""

# Anchors of a dark-to-bright ramp in the manner of magma: monotone in lightness, so it also reads in grey.
_RAMP = (
    (0, 0, 4),
    (40, 17, 89),
    (114, 31, 129),
    (183, 55, 121),
    (241, 96, 93),
    (254, 176, 120),
    (252, 253, 191),
)


@cache
def _palette() -> list[int]:
    anchors = np.array(_RAMP, dtype=float)
    steps = np.linspace(0, len(anchors) - 1, _COLOURS)
    colours = np.stack([np.interp(steps, range(len(anchors)), anchors[:, part]) for part in range(3)], axis=1)
    table = np.zeros((256, 3), dtype=np.uint8)
    table[:_COLOURS] = colours.round()
    table[_COLOURS:] = np.linspace(255, 40, _GREYS).round()[:, None]
    return table.flatten().tolist()


@cache
def _font() -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib: Pillow's own font has neither umlauts nor the signs of tokenizers."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", FONT_SIZE)


def heads(weights: np.ndarray, rows: list[str], columns: list[str]) -> Image.Image:
    """All heads of one layer side by side: queries down, keys across.

    Args:
        weights: probabilities [H, T, S].
        rows: labels of the T queries.
        columns: labels of the S keys.

    Returns:
        A palette image; the brighter, the more weight.
    """
    rows, columns = [_label(token) for token in rows], [_label(token) for token in columns]
    cell = max(1, min(CELL, LARGEST // max(weights.shape[1:])))
    left = max((_width(text) for text in rows), default=0) + 2 * _MARGIN
    top = max((_width(text) for text in columns), default=0) + FONT_SIZE + 2 * _MARGIN
    frame = _frame(cell, rows, columns, left, top)  # with labels that all heads share
    return beside([_head(head, cell, f"head {number}", frame, left, top) for number, head in enumerate(weights, 1)])


def beside(images: list[Image.Image]) -> Image.Image:
    """Images in a row."""
    return _joined(images, down=False)


def stacked(images: list[Image.Image]) -> Image.Image:
    """Images below one another."""
    return _joined(images, down=True)


def titled(image: Image.Image, title: str) -> Image.Image:
    """The image under a line of text."""
    line = _letters(max(image.width, _width(title) + 2 * _MARGIN), FONT_SIZE + 2 * _MARGIN)
    ImageDraw.Draw(line).text((_MARGIN, _MARGIN), title, fill=255, font=_font())
    return stacked([_indexed(_greys(line)), image])


def _frame(cell: int, rows: list[str], columns: list[str], left: int, top: int) -> Image.Image:
    """A sheet for one head: queries' labels on the left and keys' labels, turned, above."""
    width, height = len(columns) * cell, len(rows) * cell
    letters = _letters(left + width + 2 * _MARGIN, top + height + _MARGIN)
    draw = ImageDraw.Draw(letters)
    every = -(-FONT_SIZE // cell)  # where cells are too small for a label each, every n-th has one
    for place in range(0, len(rows), every):
        spot = (left - 4, top + place * cell + cell // 2)
        draw.text(spot, rows[place], fill=255, font=_font(), anchor="rm")
    for place in range(0, len(columns), every):
        turned = _letters(_width(columns[place]) + 2, max(cell, FONT_SIZE))
        ImageDraw.Draw(turned).text((0, turned.height // 2), columns[place], fill=255, font=_font(), anchor="lm")
        turned = turned.transpose(Image.Transpose.ROTATE_90)
        letters.paste(turned, (left + place * cell + (cell - turned.width) // 2, top - turned.height - 2))
    return letters


def _head(weights: np.ndarray, cell: int, title: str, frame: Image.Image, left: int, top: int) -> Image.Image:
    """One head in its frame, with its title above."""
    height, width = weights.shape[0] * cell, weights.shape[1] * cell
    letters = frame.copy()
    ImageDraw.Draw(letters).text((left, 2), title, fill=255, font=_font())
    pixels = _greys(letters)
    levels = (np.nan_to_num(weights).clip(0, 1) * (_COLOURS - 1)).round().astype(np.uint8)
    pixels[top : top + height, left : left + width] = levels.repeat(cell, axis=0).repeat(cell, axis=1)
    return _indexed(pixels)


def _label(token: str) -> str:
    """A token as it can be drawn: white space and control characters made visible, long ones cut."""
    shown = "_" if token == " " else token if token.isprintable() else ascii(token)[1:-1]
    return shown if len(shown) <= 12 else shown[:11] + "…"


def _width(text: str) -> int:
    return round(_font().getlength(text))


def _letters(width: int, height: int) -> Image.Image:
    """A sheet to write on: 0 is paper, 255 ink."""
    return Image.new("L", (width, height))


def _greys(letters: Image.Image) -> np.ndarray:
    """Palette numbers of a sheet of letters."""
    return _INKS[np.asarray(letters)]


def _indexed(pixels: np.ndarray) -> Image.Image:
    """Palette numbers [height, width] as an image."""
    image = Image.frombytes("P", (pixels.shape[1], pixels.shape[0]), np.ascontiguousarray(pixels).tobytes())
    image.putpalette(_palette())
    return image


def _joined(images: list[Image.Image], down: bool) -> Image.Image:
    widths, heights = [image.width for image in images], [image.height for image in images]
    size = (max(widths), sum(heights)) if down else (sum(widths), max(heights))
    sheet = Image.new("P", size, _COLOURS)
    sheet.putpalette(_palette())
    offset = 0
    for image in images:
        sheet.paste(image, (0, offset) if down else (offset, 0))
        offset += image.height if down else image.width
    return sheet
