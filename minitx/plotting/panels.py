"""Several small pictures on one sheet: heat maps and curves, drawn by matplotlib without its global state."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minitx.checkpoints.atomic_files import written_whole
from minitx.plotting.curves import COLOURS, INK, QUIET

COLUMNS = 4
"""Pictures in a row."""
TILE = (3.4, 2.9)
"""Inches of one picture, across and down."""


@dataclass(frozen=True)
class Heat:
    """Numbers in a rectangle as colours."""

    title: str
    values: np.ndarray  # [rows, columns]; what is not finite stays grey
    across: str
    down: str
    colours: str = "magma"  # a name of matplotlib's: RdBu_r is centred on zero, twilight closes like an angle


@dataclass(frozen=True)
class Lines:
    """Curves over the same numbers."""

    title: str
    at: Sequence[float]
    curves: Sequence[tuple[str, Sequence[float]]]  # a label and as many values
    across: str


def sheet(path: Path, title: str, panels: Sequence[Heat | Lines]) -> Path:
    """Draw all panels into a PNG file.

    Returns:
        The path.
    """
    with written_whole(path) as file:
        file.write(png(title, panels))
    return path


def png(title: str, panels: Sequence[Heat | Lines]) -> bytes:
    """All panels as a PNG, from left to right and from top to bottom."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(TILE[0] * columns, TILE[1] * rows + 0.4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, color=INK, fontweight="bold")
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(panel.title, loc="left", fontsize=9.5, color=INK)
        axes.set_xlabel(panel.across, fontsize=8.5, color=QUIET)
        axes.tick_params(length=0, labelsize=8, labelcolor=QUIET)
        if isinstance(panel, Heat):
            _heat(figure, axes, panel)
        else:
            _lines(axes, panel)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _heat(figure: object, axes: object, panel: Heat) -> None:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    assert isinstance(axes, Axes)
    assert isinstance(figure, Figure)
    values = np.ma.masked_invalid(panel.values)
    size = float(abs(values).max()) if values.count() else 0.0
    centred = panel.colours == "RdBu_r"
    low, high = (-size, size) if centred and size else (None, None)
    axes.set_facecolor("#D8D8D8")
    drawn = axes.imshow(values, cmap=panel.colours, aspect="auto", interpolation="nearest", vmin=low, vmax=high)
    axes.set_ylabel(panel.down, fontsize=8.5, color=QUIET)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))  # there is no row one and a half
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(drawn, ax=axes, fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=7.5, labelcolor=QUIET)


def _lines(axes: object, panel: Lines) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    marker = "o" if len(panel.at) == 1 else None  # of one point there is no line
    for number, (label, values) in enumerate(panel.curves):
        axes.plot(panel.at, values, color=COLOURS[number % len(COLOURS)], linewidth=1.6, label=label, marker=marker)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color("#999999")
    if len(panel.curves) > 1:
        axes.legend(frameon=False, fontsize=7.5)
