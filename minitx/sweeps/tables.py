"""The tables of a sweep: mean and standard deviation over seeds, as CSV and as Markdown. No torch.

Standard deviations are those of a sample (n - 1); a single seed has none.
"""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from minitx.checkpoints.atomic_files import written_whole
from minitx.sweeps.grid import Settings

Row = dict[str, Any]  # the result of sweeps.worker.run, as plain JSON types
Figures = Mapping[str, Sequence[float]]  # the values of each seed by name

PERCENTAGES = ("exact_match", "token_accuracy", "unknown_tokens")
FORMATS = {
    "seconds": ".1f", "steps": ",.0f", "solved_at_step": ",.0f", "no_improvement_from_step": ",.0f",
    "skipped_steps": ",.0f", "parameters": ",.0f", "flops": ".3g",
    "bleu": ".2f", "bleu_lowercase": ".2f", "chrf": ".2f",
}  # fmt: skip
"""Formats of figures that are not shown with four digits after the point; benchmarks show steps, too."""
COSTS = ("seconds", "parameters", "flops")  # columns after the metrics


class Line(NamedTuple):
    """The figures of one setting."""

    settings: Settings
    seeds: int
    figures: Figures  # metrics and costs
    by_length: dict[int, Figures]


def lines(rows: Sequence[Row], lengths: range | None = None) -> list[Line]:
    """Collect the rows of each setting, in the order in which settings first appear."""
    groups: dict[tuple[tuple[str, str], ...], dict[int, Row]] = {}  # by seed: a search may try settings again
    for row in rows:
        groups.setdefault(tuple(row["settings"].items()), {})[row["seed"]] = row
    table = []
    for settings, by_seed in groups.items():
        group = [*by_seed.values()]
        figures = _shared([row["figures"] | {name: row[name] for name in COSTS} for row in group])
        parts = {n: [row["by_length"][str(n)] for row in group if str(n) in row["by_length"]] for n in lengths or ()}
        table.append(Line(dict(settings), len(group), figures, {n: _shared(part) for n, part in parts.items() if part}))
    return table


def _shared(figures: list[dict[str, float]]) -> Figures:
    """The values of each figure that all seeds have; the number of examples is left out."""
    names = [name for name in figures[0] if name != "examples" and all(name in other for other in figures)]
    return {name: [part[name] for part in figures] for name in names}


def shown(name: str, values: Sequence[float]) -> str:
    """The mean of a figure with its standard deviation: "99.93 ± 0.05 %"."""
    scale, unit, form = (100, " %", ".2f") if name in PERCENTAGES else (1, "", FORMATS.get(name, ".4f"))
    constant = len(values) == 1 or (name in ("parameters", "flops") and len({*values}) == 1)  # without a deviation
    parts = [statistics.fmean(values), *([] if constant else [_deviation(values)])]
    return " ± ".join(format(scale * part, form) for part in parts) + unit


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample: NaN if a run has diverged, since `statistics` requires finite values."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def markdown(keys: Sequence[str], table: Sequence[Line], trained: tuple[int, int] | None = None) -> str:
    """A line for each setting; with figures by length also exact match within and beyond the trained lengths."""
    names = list(dict.fromkeys(name for line in table for name in line.figures))
    measured = sorted({length for line in table for length in line.by_length})
    first, last = trained or (1, 0)
    parts = [[n for n in measured if first <= n <= last], [n for n in measured if n > last]] if trained else []
    parts = [part for part in parts if part]
    headings = [f"exact match, length {part[0]}-{part[-1]}" for part in parts]
    rows = [[*keys, "seeds", *(name.replace("_", " ") for name in names), *headings]]
    rows.append(["---"] * len(rows[0]))
    for line in table:
        cells = [*(line.settings[key] for key in keys), str(line.seeds)]
        cells += [shown(name, line.figures[name]) if name in line.figures else "" for name in names]
        rows.append([text.replace("|", "\\|") for text in [*cells, *(_over(line, part) for part in parts)]])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _over(line: Line, lengths: Sequence[int]) -> str:
    """Exact match over the lengths that all seeds have: the mean over lengths of each seed, then over seeds.

    Empty if no seed has one of them, such as past the positions of a model: the mean would be over other lengths.
    """
    shares = [line.by_length.get(length, {}).get("exact_match", []) for length in lengths]
    if not all(shares):
        return ""
    found = [values for values in shares if len(values) == line.seeds]
    return shown("exact_match", [statistics.fmean(seed) for seed in zip(*found, strict=True)]) if found else ""


def write(folder: Path, keys: Sequence[str], table: Sequence[Line], trained: tuple[int, int] | None) -> list[Path]:
    """Write table.csv, table.md, and lengths.csv if there are figures by length; return their paths."""
    contents = {"table.csv": _csv([(line, {}, line.figures) for line in table])}
    contents["table.md"] = markdown(keys, table, trained)
    if by_length := [(line, {"length": n}, part) for line in table for n, part in line.by_length.items()]:
        contents["lengths.csv"] = _csv(by_length)
    for name, text in contents.items():
        with written_whole(folder / name) as file:
            file.write(text.encode())
    return [folder / name for name in contents]


def _csv(parts: Sequence[tuple[Line, dict[str, int], Figures]]) -> str:
    """Lines of CSV: settings, further columns, then mean and standard deviation of each figure."""
    records = []
    for line, more, figures in parts:
        records.append({**line.settings, **more, "seeds": line.seeds})
        for name, values in figures.items():
            records[-1][f"{name}_mean"] = statistics.fmean(values)
            records[-1][f"{name}_std"] = _deviation(values) if len(values) > 1 else None
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for record in records for name in record)))
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
