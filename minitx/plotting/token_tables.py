"""Tables of layers or heads by tokens as heat maps: the lens, and activation patching."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from minitx.interpret.images import token_label
from minitx.plotting.style import COLOURS, INK, QUIET, colour_bar, new_figure, save, style_heat, styled

CELL_WIDTH, CELL_HEIGHT = 0.5, 0.27  # inches
MAX_WIDTH = 16.0
MAX_LABEL = 8  # letters in a cell
SHARES = LinearSegmentedColormap.from_list("shares", ["#FFFFFF", COLOURS[0]])


Panel = tuple[str, Sequence[str], Sequence[str], np.ndarray, Sequence[Sequence[str]]]
"""Name, rows, columns, values [R, T] and the text of each cell."""


@styled()
def draw_tables(
    path: Path, title: str, panels: Sequence[Panel], label: str, signed: bool = False, note: str = ""
) -> None:
    """Draw panels below one another into a PNG, PDF or SVG file, with one scale: 0 to 1, or -1 to 1 if signed."""
    colours, lowest = ("RdBu_r", -1.0) if signed else (SHARES, 0.0)
    columns = max(len(panel[2]) for panel in panels)
    width = min(MAX_WIDTH, max(6.0, 1.8 + columns * CELL_WIDTH))
    heights = [0.75 + len(panel[1]) * CELL_HEIGHT for panel in panels]
    figure = new_figure(width, max(2.0, sum(heights) + 0.35), title=title)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    annotated = columns * CELL_WIDTH <= MAX_WIDTH
    for axes, (name, row_names, tokens, values, texts) in zip(grid, panels, strict=True):
        image = axes.imshow(values, cmap=colours, vmin=lowest, vmax=1.0, aspect="auto")
        style_heat(axes)
        for (row, column), value in np.ndenumerate(values) if annotated else ():
            colour = "white" if abs(value) > 0.6 else INK
            text = token_label(texts[row][column], MAX_LABEL)
            axes.annotate(text, (column, row), ha="center", va="center", fontsize=7.5, color=colour)
        axes.set_title(name)
        axes.set_xticks(range(len(tokens)), [token_label(token, MAX_LABEL) for token in tokens])
        axes.set_yticks(range(len(row_names)), row_names)
        axes.set_xlim(-0.5, columns - 0.5)  # cells of all panels have one width
        axes.set_facecolor("none")
    figure.supxlabel(note, fontsize=8, color=QUIET, x=0.01, ha="left")
    colour_bar(figure, image, list(grid), label, pad=0.02)
    save(figure, path)
