"""Accuracy plots and heat maps: lines, bands, colours, file, and no global state."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from minitx.plotting.curves import Curve, accuracy_by_length
from minitx.plotting.heatmaps import draw_tables
from minitx.plotting.panels import Heat, sheet


def test_curves_are_percent_of_means_with_bands_inside_the_picture(saved_figures: list[Figure], tmp_path: Path) -> None:
    curves = [Curve("rope", [1, 2, 3], [[1.0, 0.8], [0.5, 0.7], [0.0, 0.1]]), Curve("none", [1, 2], [[0.2], [0.1]])]
    accuracy_by_length(tmp_path / "new" / "a.png", curves, "reverse", (1, 2), "scheme")
    (axes,) = saved_figures[0].axes
    assert [list(line.get_ydata()) for line in axes.lines] == [pytest.approx([90, 60, 5]), pytest.approx([20, 10])]
    assert [list(line.get_xdata()) for line in axes.lines] == [[1, 2, 3], [1, 2]]
    (band,) = axes.collections  # a single seed has none
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.0, 100.0), "cut where shares end"
    shade = axes.patches[0]
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (0.5, 2.5)
    legend = axes.get_legend()
    assert [text.get_text() for text in (legend.get_title(), *legend.get_texts())] == ["scheme", "rope", "none"]
    assert ("mean of 1 to 2 seeds" in (note := axes.texts[-1]).get_text(), note.anncoords) == (True, "offset points")
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 2


def test_one_curve_needs_no_legend_and_many_differ(saved_figures: list[Figure], tmp_path: Path) -> None:
    """And pyplot keeps none of the figures."""
    accuracy_by_length(tmp_path / "a.png", [Curve("x", [4], [[0.5]])], "copy")
    (axes,) = saved_figures[0].axes
    assert (axes.get_legend(), [*axes.patches], [*axes.texts]) == (None, [], [])
    assert [tick for tick in axes.get_xticks() if 3.5 <= tick <= 4.5] == [4]
    accuracy_by_length(tmp_path / "a.png", [Curve(str(n), [1, 2], [[0.1], [0.2]]) for n in range(12)], "many")
    assert len({(line.get_color(), line.get_linestyle()) for line in saved_figures[1].axes[0].lines}) == 12
    assert "matplotlib.pyplot" not in __import__("sys").modules or not matplotlib.pyplot.get_fignums()


def test_signed_values_are_centred_and_nonfinite_ones_masked(saved_figures: list[Figure], tmp_path: Path) -> None:
    values = np.array([[1.0, -4.0], [np.inf, np.nan]])
    zeros, holes = Heat("c", np.zeros((2, 2)), "x", "y", "RdBu_r"), Heat("d", np.full((2, 2), np.nan), "x", "y")
    sheet(tmp_path / "a.png", "one", [Heat("a", values, "x", "y", "RdBu_r"), Heat("b", values, "x", "y"), zeros, holes])
    centred, other, *_ = (part.images[0] for part in saved_figures[0].axes if part.get_title(loc="left"))
    assert (centred.get_clim(), other.get_clim()) == ((-4.0, 4.0), (-4.0, 1.0))
    assert centred.get_array().mask.tolist() == [[False, False], [True, True]]


def test_a_table_too_long_for_a_picture_names_the_page(saved_figures: list[Figure], tmp_path: Path) -> None:
    table = ("decoder", ["1"], ["x"] * 2000, np.zeros((1, 2000)), [["y"] * 2000])
    draw_tables(tmp_path / "a.png", "lens", [table], "probability")
    assert saved_figures[0].get_supxlabel() == "the tokens are in the page, --out NAME.html"
    axes, _ = saved_figures[0].axes
    assert (len(axes.texts), axes.xaxis.get_major_formatter()(199)) == (0, "200"), "counted from one"
