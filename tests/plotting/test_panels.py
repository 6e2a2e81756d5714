"""Colours of heat maps. Panels in order, with their curves: cli/test_main.py."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from minitx.plotting.panels import Heat, sheet


def test_signed_values_are_centred_and_nonfinite_ones_masked(saved_figures: list[Figure], tmp_path: Path) -> None:
    values = np.array([[1.0, -4.0], [np.inf, np.nan]])
    zeros, holes = Heat("c", np.zeros((2, 2)), "x", "y", "RdBu_r"), Heat("d", np.full((2, 2), np.nan), "x", "y")
    panels = [Heat("a", values, "x", "y", "RdBu_r"), Heat("b", values, "x", "y"), zeros, holes]
    sheet(tmp_path / "a.png", "one", panels)
    centred, other, *_ = (part.images[0] for part in saved_figures[0].axes if part.get_title(loc="left"))
    assert centred.get_clim() == (-4.0, 4.0)
    assert other.get_clim() == (-4.0, 1.0)
    assert centred.get_array().mask.tolist() == [[False, False], [True, True]]
