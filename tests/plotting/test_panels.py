"""Several panels in one figure."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from minitx.plotting.panels import Heat, Lines, sheet


def test_panels_are_in_order(saved_figures: list[Figure], tmp_path: Path) -> None:
    heats = [Heat(f"heat {n}", np.full((2, 3), n), "x", "y") for n in range(4)]
    curve = Lines("curve", [1, 2], [("a", [0, 1]), ("b", [1, 0])], "x")
    path = sheet(tmp_path / "new" / "a.png", "all", [curve, *heats])
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width > image.height, "four in a row"
    axes = [part for part in saved_figures[0].axes if part.get_title(loc="left")]
    assert [part.get_title(loc="left") for part in axes] == ["curve", *(f"heat {n}" for n in range(4))]
    assert [list(line.get_ydata()) for line in axes[0].lines] == [[0, 1], [1, 0]]
    assert axes[0].get_legend() is not None
    assert (axes[3].images[0].get_array() == 2).all()


def test_signed_values_are_centred_and_nonfinite_ones_masked(saved_figures: list[Figure], tmp_path: Path) -> None:
    values = np.array([[1.0, -4.0], [np.inf, np.nan]])
    zeros, holes = Heat("c", np.zeros((2, 2)), "x", "y", "RdBu_r"), Heat("d", np.full((2, 2), np.nan), "x", "y")
    panels = [Heat("a", values, "x", "y", "RdBu_r"), Heat("b", values, "x", "y"), zeros, holes]
    sheet(tmp_path / "a.png", "one", panels)
    centred, other, *_ = (part.images[0] for part in saved_figures[0].axes if part.get_title(loc="left"))
    assert centred.get_clim() == (-4.0, 4.0)
    assert other.get_clim() == (-4.0, 1.0)
    assert centred.get_array().mask.tolist() == [[False, False], [True, True]]
