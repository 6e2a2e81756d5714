"""Attention maps as a figure: a row of heads for each layer, with their tokens and the colour scale.

Everything is placed in inches on one axes: hundreds of axes, each with its ticks, would take minutes.
"""

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.patches import Rectangle

from minitx.interpret import images
from minitx.interpret.recording import KINDS, Map
from minitx.plotting.style import QUIET, STYLE, new_figure, save, styled, widest
from minitx.tensorboard.map_format import escaped, shortened

if TYPE_CHECKING:
    from minitx.interpret.attention_maps import AttentionMaps

COLOURS = LinearSegmentedColormap.from_list("attention", np.array(images.RAMP) / 255)
SCALE = PowerNorm(0.5, vmin=0, vmax=1, clip=True)  # of the square root, so that small weights are visible
WIDTH = 10.0  # inches; layers are side by side within this width, and the heads of one layer shrink to fit
MIN_SIDE, MAX_SIDE, MAX_CELL = 0.9, 2.4, 0.2  # inches, of a head and of one weight
FONT, LINE = 7.5, 0.135  # in points; the height of a line in inches
TITLE_LETTER, TITLE_LINE, MAX_TITLE = 0.115, 0.19, 85  # in inches, of the title's 11 points in bold; in letters
MARGIN = 0.15
LABEL, MAX_LABELLED_SIDE = 0.85 * LINE, 4.0  # inches, of a cell with a label and of a head that grows to have them


@styled()
def draw_attention(maps: "AttentionMaps", path: Path, example: int = 0, title: str = "") -> None:
    """Draw all kinds and layers into a PNG, PDF or SVG file: queries down, keys across, brighter is more weight."""
    kinds = [found for kind in KINDS if (found := maps.layers(kind, example))]
    side = min(MAX_SIDE, max(MIN_SIDE, WIDTH / max(len(layer.weights) for found in kinds for layer in found)))
    blocks = [_Block(found, side) for found in kinds]
    width = max(MARGIN + block.width for block in blocks)
    title = escaped(shortened(title, MAX_TITLE), "\n")
    titles = textwrap.wrap(title, int((width - 2 * MARGIN) / TITLE_LETTER)) or ["attention"]
    above = (len(titles) - 1) * TITLE_LINE
    height = above + 5 * LINE + sum(block.height for block in blocks)
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.text(MARGIN, MARGIN, "\n".join(titles), fontsize=11, fontweight="bold", va="top")
    place = (MARGIN / width, 1 - (above + 3.4 * LINE) / height, 2.0 / width, 0.8 * LINE / height)
    bar = figure.add_axes(place, label="<colorbar>")
    scale = figure.colorbar(ScalarMappable(SCALE, COLOURS), cax=bar, orientation="horizontal")
    scale.set_ticks([0, 0.1, 0.25, 0.5, 1], labels=["0", "0.1", "0.25", "0.5", "1"], fontsize=FONT)
    scale.outline.set_visible(False)
    axes.text(MARGIN + 2.15, above + 3 * LINE, "attention weight", fontsize=FONT, color=QUIET, va="center")
    top = above + 5 * LINE
    for block in blocks:
        block.draw(axes, top)
        top += block.height
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="auto")
    save(figure, path)


class _Block:
    """All layers of one kind, row by row, below its name."""

    def __init__(self, layers: list[Map], side: float) -> None:
        self.layers, first = layers, layers[0]
        heads, *sizes = first.weights.shape
        cell = min(MAX_CELL, side / max(sizes))
        if max(sizes) * LABEL <= min(MAX_LABELLED_SIDE, 2 * WIDTH / heads):
            cell = max(cell, LABEL)
        self.cell, self.every = cell, math.ceil(LABEL / cell)
        self.rows, self.columns = ([*map(images.token_label, side)] for side in (first.queries, first.keys))
        left, above = (widest(labels, FONT) + 0.06 for labels in (self.rows, self.columns))
        self.corner = (LINE + left, 1.2 * LINE + above)  # of the first head, from the corner of its layer
        self.step = len(self.columns) * cell + MARGIN  # from one head to the next
        self.layer_width = self.corner[0] + self.step * len(first.weights) + MARGIN
        self.layer_height = self.corner[1] + len(self.rows) * cell + MARGIN
        self.across = min(len(layers), max(1, int(WIDTH // self.layer_width)))
        self.width = max(5.0, self.across * self.layer_width)  # the line above the heads takes 5 inches
        self.height = 2 * LINE + math.ceil(len(layers) / self.across) * self.layer_height + LINE

    def draw(self, axes: Axes, top: float) -> None:
        """Draw everything below `top`."""
        kind = self.layers[0].kind
        name = "cross-attention" if kind == "cross" else f"{kind} self-attention"
        axes.text(MARGIN, top + LINE / 2, name, fontsize=9.5, va="center")
        queries, keys = KINDS[kind]
        roles = f"each row is a query ({queries}), each column a key ({keys})"
        axes.text(MARGIN + 1.9, top + LINE / 2, roles, fontsize=FONT, color=QUIET, va="center")
        labels = f"one token in {self.every} has a label" if self.every > 1 else ""
        axes.text(MARGIN + 1.9, top + 1.5 * LINE, labels, fontsize=FONT, color=QUIET, va="center")
        for number, layer in enumerate(self.layers):
            row, column = divmod(number, self.across)
            x = MARGIN + column * self.layer_width
            y = top + 2 * LINE + row * self.layer_height + self.corner[1]
            middle = y + len(self.rows) * self.cell / 2
            axes.text(x, middle, f"layer {number + 1}", rotation=90, ha="left", va="center", color=QUIET)
            x += self.corner[0]
            self._tokens(axes, self.rows, x - 0.04, y, ha="right", va="center_baseline")
            for head, weights in enumerate(layer.weights.numpy(), start=1):
                self._head(axes, weights, f"head {head}", x, y)
                x += self.step

    def _head(self, axes: Axes, weights: np.ndarray, title: str, x: float, y: float) -> None:
        """One head [T, S] with its left upper corner at x, y, its number and its keys above."""
        height, width = (size * self.cell for size in weights.shape)
        extent = (x, x + width, y + height, y)
        every = math.ceil(1 / (self.cell * STYLE["figure.dpi"]))  # weights per pixel, which shows the largest
        shown = np.nan_to_num(weights)
        for axis, size in enumerate(weights.shape):
            shown = np.maximum.reduceat(shown, range(0, size, every), axis)
        axes.imshow(shown, cmap=COLOURS, norm=SCALE, extent=extent, aspect="auto")
        # Drawn below the image: on top, it would cover the first key of a small head.
        axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=QUIET, linewidth=0.4, zorder=-1))
        self._tokens(axes, self.columns, x, y - 0.03, ha="center", va="bottom", rotation=90)
        axes.text(x, y - self.corner[1] + LINE / 2, title, fontsize=FONT, color=QUIET, va="center")

    def _tokens(self, axes: Axes, labels: list[str], x: float, y: float, **place: Any) -> None:
        """Labels along a head; if cells are smaller than text, of every n-th token."""
        for index in range(0, len(labels), self.every):
            along = (index + 0.5) * self.cell
            at = (x + along, y) if "rotation" in place else (x, y + along)
            axes.text(*at, labels[index], fontsize=FONT, **place)
