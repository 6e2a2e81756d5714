"""The common look of all plots. matplotlib is used without pyplot, so that no global state is left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from minitx.checkpoints.atomic_files import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

# Okabe and Ito's colours, distinguishable for the colour-blind.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
INK, QUIET, SHADE = "#222222", "#666666", "#EEF1F4"


def new_figure(width: float, height: float, dpi: int = 130, title: str | None = None) -> Figure:
    """An empty figure of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

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
