"""Means and standard deviations over seeds, as Markdown and CSV."""

import csv
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from minitx.sweeps import tables


def row(scheme: str, seed: int, exact: float, by_length: dict[str, float]) -> dict[str, Any]:
    return {
        "settings": {"scheme": scheme}, "seed": seed, "figures": {"exact_match": exact, "loss": 1.5},
        "seconds": 10.0 * seed, "parameters": 1234, "flops": 2e9,
        "by_length": {key: {"examples": 5, "exact_match": value} for key, value in by_length.items()},
    }  # fmt: skip


ROWS = [
    row("rope", 1, 0.5, {"1": 1.0, "2": 0.5, "3": 0.0, "4": 0.9}),
    row("none|x", 1, 0.1, {"1": 0.5, "3": 0.25, "4": 0.25}),
    row("rope", 2, 0.7, {"1": 1.0, "2": 0.7, "3": 0.2}),
]  # fmt: skip


def test_markdown_has_a_line_for_each_setting() -> None:
    head, _, rope, none = tables.markdown(["scheme"], tables.lines(ROWS, range(1, 9)), (1, 2)).splitlines()
    assert head.endswith("| exact match, length 1-2 | exact match, length 3-4 |")
    # Within: (1.0 + 0.5) / 2 and (1.0 + 0.7) / 2; beyond: 0.0 and 0.2, at length 3, which both seeds have.
    figures = "60.00 ± 14.14 % | 1.5000 ± 0.0000 | 15.0 ± 7.1 | 1,234 | 2e+09 | 80.00 ± 7.07 % | 10.00 ± 14.14 %"
    assert rope == f"| rope | 2 | {figures} |"
    assert none == "| none\\|x | 1 | 10.00 % | 1.5000 | 10.0 | 1,234 | 2e+09 |  | 25.00 % |", "it has no length 2"
    assert tables.shown("solved_at_step", [1140]) == "1,140"
    assert tables.shown("flops", [1e9, 3e9]) == "2e+09 ± 1.41e+09", "of seeds that stopped at different steps"
    assert tables.lines(ROWS * 2) == tables.lines(ROWS), "settings that a search tries again are not more seeds"
    assert "length" not in tables.markdown(["scheme"], tables.lines(ROWS), (1, 2))
    assert "length" not in tables.markdown(["scheme"], tables.lines(ROWS, range(1, 9)), None)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_seed_that_diverged_is_in_the_tables(tmp_path: Path, loss: float) -> None:
    diverged = ROWS[2] | {"figures": {"exact_match": 0.0, "loss": loss}}
    table, text = tables.write(tmp_path, ["scheme"], tables.lines([ROWS[0], diverged]), None)
    line = next(csv.DictReader(table.open(newline="")))
    assert (line["loss_mean"], line["loss_std"]) == (str(loss), "nan")
    assert f"| {loss} ± nan |" in text.read_text(encoding="utf-8")


def test_files_hold_full_precision(tmp_path: Path) -> None:
    files = tables.write(tmp_path / "out", ["scheme"], tables.lines(ROWS, range(1, 9)), (1, 2))
    whole, lengths = ([*csv.DictReader(file.open(newline=""))] for file in files if file.suffix == ".csv")
    assert {file.name for file in files} == {"table.csv", "table.md", "lengths.csv"}
    exact = [float(whole[0]["exact_match_mean"]), float(whole[0]["exact_match_std"]), whole[1]["exact_match_std"]]
    assert exact == [statistics.fmean((0.5, 0.7)), statistics.stdev((0.5, 0.7)), ""]
    assert [n["scheme"] + n["length"] for n in lengths] == [f"rope{n}" for n in "1234"] + [f"none|x{n}" for n in "134"]
    assert [float(n["exact_match_mean"]) for n in lengths[2:4]] == pytest.approx([0.1, 0.9]), "of seeds that have it"
    assert [file.name for file in tables.write(tmp_path, [], tables.lines(ROWS), None)] == ["table.csv", "table.md"]
