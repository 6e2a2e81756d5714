"""The tables of a sweep: mean and standard deviation over seeds, as CSV and as Markdown. No torch.

Standard deviations are those of a sample (n - 1); a single seed has none.
"""

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitx.checkpoints.atomic_files import written_whole
from minitx.sweeps.grid import Settings

Row = dict[str, Any]  # the result of sweeps.worker.run, as plain JSON types

PERCENTAGES = ("exact_match", "token_accuracy")
FORMATS = {"seconds": ".1f", "steps": ",.0f", "parameters": ",.0f", "flops": ".3g"}
"""Formats of figures that are not shown with four digits after the point."""
COSTS = ("seconds", "parameters", "flops")  # columns after the metrics


@dataclass(frozen=True)
class Summary:
    """A figure over seeds."""

    mean: float
    deviation: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> "Summary":
        """Summarize at least one value."""
        values = tuple(values)
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, values)


Figures = Mapping[str, Summary]


@dataclass(frozen=True)
class Line:
    """The figures of one setting."""

    settings: Settings
    seeds: tuple[int, ...]
    figures: Figures  # metrics and costs
    by_length: dict[int, Figures]


def lines(rows: Sequence[Row], lengths: range | None = None) -> list[Line]:
    """Summarize the rows of each setting, in the order in which settings first appear."""
    groups: dict[tuple[tuple[str, str], ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row["settings"].items()), []).append(row)
    table = []
    for settings, group in groups.items():
        figures = _summaries([row["figures"] | {name: row[name] for name in COSTS} for row in group])
        parts = {n: [row["by_length"][str(n)] for row in group if str(n) in row["by_length"]] for n in lengths or ()}
        by_length = {n: _summaries(part) for n, part in parts.items() if part}
        table.append(Line(dict(settings), tuple(row["seed"] for row in group), figures, by_length))
    return table


def _summaries(figures: list[dict[str, float]]) -> Figures:
    """Each figure that all seeds have; the number of examples is none."""
    shared = [name for name in figures[0] if name != "examples" and all(name in other for other in figures)]
    return {name: Summary.of(part[name] for part in figures) for name in shared}


def shown(name: str, summary: Summary) -> str:
    """A mean with its standard deviation: "99.93 ± 0.05 %"."""
    scale, unit, form = (100, " %", ".2f") if name in PERCENTAGES else (1, "", FORMATS.get(name, ".4f"))
    constant = name in ("parameters", "flops")  # without a standard deviation
    values = [summary.mean] if constant or summary.deviation is None else [summary.mean, summary.deviation]
    return " ± ".join(format(scale * value, form) for value in values) + unit


def markdown(keys: Sequence[str], table: Sequence[Line], trained: tuple[int, int] | None = None) -> str:
    """A line for each setting; with figures by length also exact match within and beyond the trained lengths."""
    names = list(dict.fromkeys(name for line in table for name in line.figures))
    measured = sorted({length for line in table for length in line.by_length})
    parts = []
    if trained is not None:
        parts = [[n for n in measured if trained[0] <= n <= trained[1]], [n for n in measured if n > trained[1]]]
    parts = [part for part in parts if part]
    headings = [f"exact match, length {part[0]}-{part[-1]}" for part in parts]
    rows = [[*keys, "seeds", *(name.replace("_", " ") for name in names), *headings]]
    rows.append(["---"] * len(rows[0]))
    for line in table:
        cells = [*(line.settings[key] for key in keys), str(len(line.seeds))]
        cells += [shown(name, line.figures[name]) if name in line.figures else "" for name in names]
        rows.append([text.replace("|", "\\|") for text in [*cells, *(_over(line, part) for part in parts)]])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _over(line: Line, lengths: Sequence[int]) -> str:
    """Exact match over the lengths that all seeds have: the mean over lengths of each seed, then over seeds."""
    shares = [line.by_length[n]["exact_match"].values for n in lengths if "exact_match" in line.by_length.get(n, {})]
    found = [values for values in shares if len(values) == len(line.seeds)]
    means = [statistics.fmean(values) for values in zip(*found, strict=True)]
    return shown("exact_match", Summary.of(means)) if means else ""


def write(folder: Path, keys: Sequence[str], table: Sequence[Line], trained: tuple[int, int] | None) -> list[Path]:
    """Write table.csv, table.md, and lengths.csv if there are figures by length; return their paths."""
    contents = {
        "table.csv": _csv([_record(line, line.figures) for line in table]),
        "table.md": markdown(keys, table, trained),
    }
    if by_length := [_record(line, part, length=n) for line in table for n, part in line.by_length.items()]:
        contents["lengths.csv"] = _csv(by_length)
    for name, text in contents.items():
        with written_whole(folder / name) as file:
            file.write(text.encode())
    return [folder / name for name in contents]


def _record(line: Line, figures: Figures, **more: int) -> dict[str, Any]:
    """A line of CSV: the settings, then mean and standard deviation of each figure."""
    record: dict[str, Any] = {**line.settings, **more, "seeds": len(line.seeds)}
    for name, summary in figures.items():
        record |= {f"{name}_mean": summary.mean, f"{name}_std": summary.deviation}
    return record


def _csv(records: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for record in records for name in record)))
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
