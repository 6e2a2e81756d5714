"""Several heat maps and curves in one figure."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from minitx.plotting.style import COLOURS, colour_bar, legend_beside, new_figure, render, save, style_heat, styled

COLUMNS = 3
PANEL_INCHES = (3.2, 2.4)  # width and height
MIN_WIDTH = 4.6
MAX_MARKED_POINTS = 40  # of a curve whose points are marked
LEGEND_ROWS = 12


class Heat(NamedTuple):
    """A matrix as colours."""

    title: str
    values: np.ndarray  # [rows, columns]; non-finite values are grey
    across: str
    down: str
    colours: str = "magma"  # a colour map of matplotlib: RdBu_r is centred on zero, twilight is of angles, 0 to 2 pi


class Lines(NamedTuple):
    """Curves with a common horizontal axis."""

    title: str
    at: Sequence[float]
    curves: Sequence[tuple[str, Sequence[float | None]]]  # a label and as many values; None: no point there
    across: str
    legend: str = ""  # its title


def sheet(path: Path, title: str, panels: Sequence[Heat | Lines]) -> Path:
    """Plot all panels into a PNG, PDF or SVG file; return its path."""
    return save(_figure(title, panels), path)


def png(title: str, panels: Sequence[Heat | Lines]) -> bytes:
    """All panels as a PNG."""
    file = io.BytesIO()
    render(_figure(title, panels), file, "png")
    return file.getvalue()


@styled()
def _figure(title: str, panels: Sequence[Heat | Lines]) -> Figure:
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(max(MIN_WIDTH, PANEL_INCHES[0] * columns), PANEL_INCHES[1] * rows + 0.4, title=title)
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(panel.title if len(panel.title) < 36 else panel.title.replace("/", "/\n"))
        axes.set_xlabel(panel.across)
        if isinstance(panel, Heat):
            _heat(figure, axes, panel)
        else:
            _lines(axes, panel)
    return figure


def _heat(figure: Figure, axes: Axes, panel: Heat) -> None:
    norm = {"RdBu_r": CenteredNorm(), "twilight": Normalize(0, 2 * math.pi)}.get(panel.colours)
    image = axes.imshow(np.ma.masked_invalid(panel.values), cmap=panel.colours, aspect="auto", norm=norm)
    axes.set_ylabel(panel.down)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    style_heat(axes)
    colour_bar(figure, image, axes, fraction=0.05, pad=0.02)


def _lines(axes: Axes, panel: Lines) -> None:
    # Of many curves, those whose labels begin alike share a colour: the heads of a layer.
    labels = [label for label, _ in panel.curves]
    groups, legend = labels, panel.legend
    if len(labels) > len(COLOURS):
        groups, legend = [label.partition(".")[0] for label in labels], legend.partition(".")[0]
    names = list(dict.fromkeys(groups))
    few = len(names) <= len(COLOURS)
    colours = COLOURS if few else matplotlib.colormaps["viridis"](np.linspace(0, 0.95, len(names)))
    for number, ((_, values), group) in enumerate(zip(panel.curves, groups, strict=True)):
        points = [(x, y) for x, y in zip(panel.at, values, strict=True) if y is not None]
        marker = "o" if len(points) <= MAX_MARKED_POINTS else None
        label = None if group in groups[:number] else group
        axes.plot(*zip(*points, strict=True), color=colours[names.index(group)], marker=marker, label=label)
    if all(float(x).is_integer() for x in panel.at):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if len(labels) > 1:
        legend_beside(axes, legend, columns=math.ceil(len(names) / LEGEND_ROWS))
