"""The figures of a sweep: mean and standard deviation over seeds, as CSV and as Markdown. No torch.

Standard deviations are those of a sample (n - 1); of one seed there is none.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitx.checkpoints.atomic_files import written_whole
from minitx.sweeps.grid import Settings
from minitx.sweeps.rows import Row

SHARES = ("exact_match", "token_accuracy")
"""Figures shown in percent."""
COSTS = ("seconds", "parameters", "flops")
"""What stands behind the figures."""


@dataclass(frozen=True)
class Summary:
    """A figure over seeds."""

    mean: float
    deviation: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        """Of at least one value."""
        values = tuple(values)
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, values)


@dataclass(frozen=True)
class Line:
    """What is known of one setting."""

    settings: Settings
    seeds: tuple[int, ...]
    figures: dict[str, Summary]  # costs among them
    by_length: dict[int, dict[str, Summary]]


def lines(rows: Sequence[Row], lengths: range | None = None) -> list[Line]:
    """The rows of each setting in one line, in the order in which settings first appear."""
    groups: dict[tuple[tuple[str, str], ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row["settings"].items()), []).append(row)
    return [_line(dict(settings), group, lengths) for settings, group in groups.items()]


def _line(settings: Settings, rows: list[Row], lengths: range | None) -> Line:
    together = [{**row["figures"], **{name: row[name] for name in COSTS}} for row in rows]
    by_length: dict[int, dict[str, Summary]] = {}
    for length in lengths or ():
        found = [row["by_length"][str(length)] for row in rows if str(length) in row["by_length"]]
        if found:
            by_length[length] = _summaries([{key: part[key] for key in part if key != "examples"} for part in found])
    return Line(settings, tuple(row["seed"] for row in rows), _summaries(together), by_length)


def _summaries(figures: list[dict[str, float]]) -> dict[str, Summary]:
    """Each figure that all have, over all of them."""
    shared = [name for name in figures[0] if all(name in other for other in figures)]
    return {name: Summary.of(part[name] for part in figures) for name in shared}


def shown(name: str, summary: Summary) -> str:
    """A mean with its standard deviation as people read it: "99.93 ± 0.05 %"."""
    if name in SHARES:
        return _spread(summary, lambda value: f"{100 * value:.2f}") + " %"
    if name == "seconds":
        return _spread(summary, lambda value: f"{value:.1f}")
    if name == "steps":
        return _spread(summary, lambda value: f"{value:,.0f}")
    if name in COSTS:
        return f"{summary.mean:.3g}" if name == "flops" else f"{summary.mean:,.0f}"
    return _spread(summary, lambda value: f"{value:.4f}")


def _spread(summary: Summary, written: Callable[[float], str]) -> str:
    return written(summary.mean) + ("" if summary.deviation is None else f" ± {written(summary.deviation)}")


def markdown(keys: Sequence[str], table: Sequence[Line], trained: tuple[int, int] | None = None) -> str:
    """One line for each setting; with figures by length, exact match within and beyond the trained lengths too."""
    names = list(dict.fromkeys(name for line in table for name in line.figures))
    beyond = _beyond(table, trained)
    header = [*keys, "seeds", *(name.replace("_", " ") for name in names), *beyond]
    cells = [
        [
            *(line.settings[key] for key in keys),
            str(len(line.seeds)),
            *(shown(name, line.figures[name]) if name in line.figures else "" for name in names),
            *(_over(line, lengths) for lengths in beyond.values()),
        ]
        for line in table
    ]
    rows = [header, ["---"] * len(header), *([text.replace("|", "\\|") for text in row] for row in cells)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _beyond(table: Sequence[Line], trained: tuple[int, int] | None) -> dict[str, list[int]]:
    """The lengths within and beyond those of training, by the heading of their column."""
    measured = sorted({length for line in table for length in line.by_length})
    if trained is None or not measured:
        return {}
    parts = [[n for n in measured if trained[0] <= n <= trained[1]], [n for n in measured if n > trained[1]]]
    return {f"exact match, length {part[0]}-{part[-1]}": part for part in parts if part}


def _over(line: Line, lengths: Sequence[int]) -> str:
    """Exact match over a few lengths, each counted alike: the mean over lengths of each seed, then over seeds."""
    found = [line.by_length[n]["exact_match"].values for n in lengths if "exact_match" in line.by_length.get(n, {})]
    if not found:
        return ""
    return shown("exact_match", Summary.of(statistics.fmean(seed) for seed in zip(*found, strict=True)))


def write(folder: Path, keys: Sequence[str], table: Sequence[Line], trained: tuple[int, int] | None) -> list[Path]:
    """table.csv, table.md, and lengths.csv where there are figures by length.

    Returns:
        The files.
    """
    names = list(dict.fromkeys(name for line in table for name in line.figures))
    header = [*keys, "seeds", *(column for name in names for column in (f"{name}_mean", f"{name}_std"))]
    cells = [[*(line.settings[key] for key in keys), len(line.seeds), *_pairs(names, line.figures)] for line in table]
    files = [_csv(folder / "table.csv", [header, *cells])]
    with written_whole(folder / "table.md") as file:
        file.write(markdown(keys, table, trained).encode())
    files.append(folder / "table.md")
    if any(line.by_length for line in table):
        names = list(dict.fromkeys(name for line in table for part in line.by_length.values() for name in part))
        header = [*keys, "length", "seeds", *(column for name in names for column in (f"{name}_mean", f"{name}_std"))]
        cells = [
            [*(line.settings[key] for key in keys), length, len(line.seeds), *_pairs(names, part)]
            for line in table
            for length, part in line.by_length.items()
        ]
        files.append(_csv(folder / "lengths.csv", [header, *cells]))
    return files


def _pairs(names: Sequence[str], figures: dict[str, Summary]) -> list[Any]:
    """Mean and standard deviation of each figure, empty where there is none."""
    cells: list[Any] = []
    for name in names:
        summary = figures.get(name)
        deviation = None if summary is None else summary.deviation
        cells += ["" if summary is None else summary.mean, "" if deviation is None else deviation]
    return cells


def _csv(path: Path, rows: Iterable[Sequence[Any]]) -> Path:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    with written_whole(path) as file:
        file.write(text.getvalue().encode())
    return path
