"""The common look of all plots, and several heat maps and curves in one figure.

matplotlib is used without pyplot, so that no global state is left.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from minitx.checkpoints.atomic_files import written_whole

# Okabe and Ito's colours, distinguishable for the colour-blind.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
INK, QUIET, SHADE = "#222222", "#666666", "#EEF1F4"
COLUMNS = 4
PANEL_INCHES = (3.4, 2.9)  # width and height


def new_figure(width: float, height: float, dpi: int = 130, title: str | None = None) -> Figure:
    """An empty figure of this size in inches."""
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    if title is not None:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, fontweight="bold", color=INK)
    return figure


def style_axes(axes: Axes, heat: bool = False) -> None:
    """Remove ticks and frame; for curves, keep the bottom line and add a grid."""
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom" and not heat)
        spine.set_color("#999999")
    if not heat:
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.7)


def style_colorbar(bar: Colorbar) -> None:
    """Remove ticks and frame of a colour bar."""
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=QUIET)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as a PNG file."""
    with written_whole(path) as file:
        figure.savefig(file, format="png")
    return path


# ---- panels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heat:
    """A matrix as colours."""

    title: str
    values: np.ndarray  # [rows, columns]; non-finite values are grey
    across: str
    down: str
    colours: str = "magma"  # a colour map of matplotlib: RdBu_r is centred on zero, twilight is cyclic


@dataclass(frozen=True)
class Lines:
    """Curves with a common horizontal axis."""

    title: str
    at: Sequence[float]
    curves: Sequence[tuple[str, Sequence[float]]]  # a label and as many values
    across: str


def sheet(path: Path, title: str, panels: Sequence[Heat | Lines]) -> Path:
    """Plot all panels into a PNG file; return its path."""
    return save(_figure(title, panels), path)


def png(title: str, panels: Sequence[Heat | Lines]) -> bytes:
    """All panels as a PNG."""
    file = io.BytesIO()
    _figure(title, panels).savefig(file, format="png")
    return file.getvalue()


def _figure(title: str, panels: Sequence[Heat | Lines]) -> Figure:
    """All panels, row by row."""
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.4, title=title)
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(panel.title, loc="left", fontsize=9.5, color=INK)
        axes.set_xlabel(panel.across, fontsize=8.5, color=QUIET)
        axes.tick_params(labelsize=8, labelcolor=QUIET)
        style_axes(axes, heat=isinstance(panel, Heat))
        if isinstance(panel, Heat):
            _heat(figure, axes, panel)
        else:
            _lines(axes, panel)
    return figure


def _heat(figure: Figure, axes: Axes, panel: Heat) -> None:
    values = np.ma.masked_invalid(panel.values)
    largest = float(abs(values).max()) if values.count() else 0.0
    low, high = (-largest, largest) if panel.colours == "RdBu_r" and largest else (None, None)
    axes.set_facecolor("#D8D8D8")
    image = axes.imshow(values, cmap=panel.colours, aspect="auto", interpolation="nearest", vmin=low, vmax=high)
    axes.set_ylabel(panel.down, fontsize=8.5, color=QUIET)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    style_colorbar(figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02))


def _lines(axes: Axes, panel: Lines) -> None:
    marker = "o" if len(panel.at) == 1 else None  # a line needs two points
    for number, (label, values) in enumerate(panel.curves):
        axes.plot(panel.at, values, color=COLOURS[number % len(COLOURS)], linewidth=1.6, label=label, marker=marker)
    if len(panel.curves) > 1:
        axes.legend(frameon=False, fontsize=7.5)
