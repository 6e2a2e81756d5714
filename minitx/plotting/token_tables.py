"""Tables of layers or heads by tokens as heat maps: the lens, and activation patching."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from minitx.interpret.images import token_label
from minitx.plotting.style import COLOURS, INK, QUIET, colour_bar, new_figure, save, style_heat, styled

if TYPE_CHECKING:
    from minitx.interpret.lens import Lens
    from minitx.interpret.patch_map import PatchMap

CELL_WIDTH, CELL_HEIGHT = 0.5, 0.27  # inches
MAX_WIDTH = 16.0
MAX_LABEL = 8  # letters in a cell
SHARES = LinearSegmentedColormap.from_list("shares", ["#FFFFFF", COLOURS[0]])


@styled()
def draw_lens(lens: "Lens", path: Path) -> None:
    """Draw the likeliest token of each layer and position into a PNG, PDF or SVG file; darker is more probable."""
    panels = []
    for stack in lens.logits:
        top = [[column[0] for column in row] for row in lens.top(stack, 1)]
        shares = np.array([[share for _, share in row] for row in top])
        tokens = [[token_label(token, MAX_LABEL) for token, _ in row] for row in top]
        panels.append((lens.names[stack], lens.layers(stack), lens.tokens, shares, tokens))
    _draw(path, f"lens of {lens.title}", panels, "probability", SHARES, (0.0, 1.0))


@styled()
def draw_patches(patches: "PatchMap", path: Path) -> None:
    """Draw what each patch restores into a PNG, PDF or SVG file: red restores, blue does the opposite."""
    panels = [
        (kind, patches.rows[kind], patches.columns[kind], values.numpy(), patches.texts(kind))
        for kind, values in patches.values.items()
    ]
    _draw(path, f"patching of {patches.title}", panels, "restored", "RdBu_r", (-1.0, 1.0), patches.note)


Panel = tuple[str, Sequence[str], Sequence[str], np.ndarray, Sequence[Sequence[str]]]
"""Name, rows, columns, values [R, T] and the text of each cell."""


def _draw(
    path: Path, title: str, panels: Sequence[Panel], label: str, colours: str | LinearSegmentedColormap,
    limits: tuple[float, float], note: str = "",
) -> None:  # fmt: skip
    """All panels below one another, with one scale."""
    columns = max(len(panel[2]) for panel in panels)
    width = min(MAX_WIDTH, max(6.0, 1.8 + columns * CELL_WIDTH))
    heights = [0.75 + len(panel[1]) * CELL_HEIGHT for panel in panels]
    figure = new_figure(width, max(2.0, sum(heights) + 0.35), title=title)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    annotated = columns * CELL_WIDTH <= MAX_WIDTH
    for axes, (name, row_names, tokens, values, texts) in zip(grid, panels, strict=True):
        image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
        style_heat(axes)
        for (row, column), value in np.ndenumerate(values) if annotated else ():
            colour = "white" if abs(value) > 0.6 else INK
            axes.annotate(texts[row][column], (column, row), ha="center", va="center", fontsize=7.5, color=colour)
        axes.set_title(name)
        axes.set_xticks(range(len(tokens)), [token_label(token, MAX_LABEL) for token in tokens])
        axes.set_yticks(range(len(row_names)), row_names)
        axes.set_xlim(-0.5, columns - 0.5)  # cells of all panels have one width
        axes.set_facecolor("none")
    figure.supxlabel(note, fontsize=8, color=QUIET, x=0.01, ha="left")
    colour_bar(figure, image, list(grid), label, pad=0.02)
    save(figure, path)
