"""Accuracy against length, with bands over seeds."""

import math
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from minitx.plotting.style import COLOURS, QUIET, SHADE, legend_beside, new_figure, save, styled

MARKERS = "osD^vPX*"
DASHES = ("-", "--", ":", "-.")  # curves after the first eight repeat the colours with other dashes
LEGEND_WIDTH, TITLE_WIDTH = 24, 60  # characters in a line


class Curve(NamedTuple):
    """A share over lengths."""

    label: str
    lengths: Sequence[int]
    values: Sequence[Sequence[float]]  # for each length one value for each seed, in [0, 1]


@styled()
def accuracy_by_length(
    path: Path, curves: Sequence[Curve], title: str, trained: tuple[int, int] | None = None, legend: str = ""
) -> Path:
    """Plot shares against length: the mean over seeds as a line, one standard deviation as a band.

    The first curve is on top, the lengths in training (shortest, longest) are shaded, and `legend` is the title of the
    legend. The path, .png, .pdf or .svg, is returned.
    """
    labels = [textwrap.fill(curve.label, LEGEND_WIDTH, break_on_hyphens=False) for curve in curves]
    legend = textwrap.fill(legend, LEGEND_WIDTH, break_long_words=False)  # keys, which are not broken
    in_legend = sum(text.count("\n") + 1 for text in (legend, *labels))
    figure = new_figure(6.8, max(3.4, 1.0 + 0.18 * in_legend))
    axes = figure.add_subplot()
    lengths = [length for curve in curves for length in curve.lengths]
    if trained is not None and trained[0] <= max(lengths) and min(lengths) <= trained[1]:
        axes.axvspan(trained[0] - 0.5, trained[1] + 0.5, color=SHADE, linewidth=0, zorder=0)
        middle = (max(trained[0], min(lengths)) + min(trained[1], max(lengths))) / 2
        _note(axes, "lengths in training", (middle, 1.0), 3.0, ha="center", va="bottom")
    for number, curve in enumerate(curves):
        _draw(axes, curve, labels[number], number, len(curves))
    axes.set(xlim=(min(lengths) - 0.5, max(lengths) + 0.5), ylim=(-3, 103), xlabel="length of the question")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_yticks(range(0, 101, 20), [f"{share} %" for share in range(0, 101, 20)])
    axes.set_title(textwrap.fill(title, TITLE_WIDTH), pad=18, fontsize=11, fontweight="bold")
    if len(curves) > 1:
        legend_beside(axes, legend)
    seeds = sorted({len(values) for curve in curves for values in curve.values})
    if seeds[-1] > 1:
        count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else seeds[0]
        note, right = f"mean of {count} seeds; band: one standard deviation", max(lengths) + 0.5
        _note(axes, note, (right, 0.0), -28.0, ha="right", va="top")
    return save(figure, path)


def _note(axes: Axes, text: str, place: tuple[float, float], points: float, **alignment: Any) -> None:
    """A text so many points above (or below, if negative) a place: a length, and a share of the height of the axes."""
    coordinates: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, place, (0.0, points), color=QUIET, **coordinates, **alignment)


def _draw(axes: Axes, curve: Curve, label: str, number: int, total: int) -> None:
    colour = COLOURS[number % len(COLOURS)]
    means = [100 * statistics.fmean(values) for values in curve.values]
    spread = [100 * statistics.stdev(values) if len(values) > 1 else 0.0 for values in curve.values]
    if any(spread):
        low = [max(0.0, mean - deviation) for mean, deviation in zip(means, spread, strict=True)]
        high = [min(100.0, mean + deviation) for mean, deviation in zip(means, spread, strict=True)]
        axes.fill_between(curve.lengths, low, high, color=colour, alpha=0.14, linewidth=0, zorder=2)  # below all lines
    every = math.ceil(len(means) / 30)
    dashes, marker = DASHES[number // len(COLOURS) % len(DASHES)], MARKERS[number % len(MARKERS)]
    marks: dict[str, Any] = {"marker": marker, "markeredgewidth": 0, "markevery": (number % every, every)}
    axes.plot(curve.lengths, means, dashes, color=colour, label=label, zorder=3 + total - number, **marks)
