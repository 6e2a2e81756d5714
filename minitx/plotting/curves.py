"""Accuracy against length, with bands over seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from minitx.plotting.panels import COLOURS, INK, QUIET, SHADE, new_figure, save, style_axes

MARKERS = "osD^vPX*"
DASHES = ("-", "--", ":", "-.")  # curves after the first eight repeat the colours with other dashes


@dataclass(frozen=True)
class Curve:
    """A share over lengths."""

    label: str
    lengths: Sequence[int]
    values: Sequence[Sequence[float]]  # for each length one value for each seed, in [0, 1]


def accuracy_by_length(
    path: Path, curves: Sequence[Curve], title: str, trained: tuple[int, int] | None = None, legend: str = ""
) -> Path:
    """Plot shares against length into a PNG file: the mean over seeds as a line, one standard deviation as a band.

    The first curve is on top, the lengths in training (shortest, longest) are shaded, and `legend` is the title of the
    legend. The path is returned.
    """
    figure = new_figure(8.6, 4.6, dpi=160)
    axes = figure.add_subplot()
    lengths = [length for curve in curves for length in curve.lengths]
    if trained is not None:
        axes.axvspan(trained[0] - 0.5, trained[1] + 0.5, color=SHADE, linewidth=0, zorder=0)
        middle = (max(trained[0], min(lengths)) + min(trained[1], max(lengths))) / 2
        axes.text(middle, 104.5, "lengths in training", ha="center", va="bottom", fontsize=9, color=QUIET)
    for number, curve in enumerate(curves):
        _draw(axes, curve, number, len(curves))
    axes.set_xlim(min(lengths) - 0.5, max(lengths) + 0.5)
    axes.set_ylim(-3, 103)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.set_yticks(range(0, 101, 20), [f"{share} %" for share in range(0, 101, 20)])
    style_axes(axes)
    axes.tick_params(labelsize=9.5, labelcolor=INK)
    axes.set_xlabel("length of the question", fontsize=10.5, color=INK)
    axes.set_title(title, loc="left", pad=24, fontsize=12.5, color=INK, fontweight="bold")
    if len(curves) > 1:
        place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "alignment": "left"}
        axes.legend(title=legend or None, title_fontsize=9, fontsize=9.5, frameon=False, **place)
    seeds = max(len(values) for curve in curves for values in curve.values)
    if seeds > 1:
        note = f"mean of {seeds} seeds; band: one standard deviation"
        axes.text(1.0, -0.15, note, transform=axes.transAxes, ha="right", va="top", fontsize=8.5, color=QUIET)
    return save(figure, path)


def _draw(axes: Axes, curve: Curve, number: int, total: int) -> None:
    """Plot one line with its band."""
    colour = COLOURS[number % len(COLOURS)]
    means = [100 * statistics.fmean(values) for values in curve.values]
    spread = [100 * statistics.stdev(values) if len(values) > 1 else 0.0 for values in curve.values]
    if any(spread):
        low = [max(0.0, mean - deviation) for mean, deviation in zip(means, spread, strict=True)]
        high = [min(100.0, mean + deviation) for mean, deviation in zip(means, spread, strict=True)]
        axes.fill_between(curve.lengths, low, high, color=colour, alpha=0.14, linewidth=0, zorder=2)  # below all lines
    every = math.ceil(len(means) / 30)
    style: dict[str, Any] = {
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }
    style |= {"linewidth": 1.9, "markersize": 4.2, "markeredgewidth": 0, "markevery": (number % every, every)}
    axes.plot(curve.lengths, means, color=colour, label=curve.label, zorder=3 + total - number, **style)
