"""Shared by all benchmarks: description of the machine, results as JSON, tables as Markdown."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from minitx.cli.config_parser import Parser
from minitx.hardware.machine import machine
from minitx.sweeps.grid import Space
from minitx.sweeps.plan import GRID, SearchOptions, plan
from minitx.sweeps.sweep import sweep

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"


def trained(
    words: Sequence[str], values: Space, seeds: int, lengths: str | None, jobs: int, first_seed: int = 1,
    search: SearchOptions = GRID,
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of a sweep over values of keys, for a config from a command line; exits if a run fails."""
    rows, failed = sweep(
        plan(Parser(configured=True).parse_args(words).values, values, seeds, lengths, first_seed, search), jobs
    )
    if failed:
        raise SystemExit("\n".join(failed))
    return rows


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def machines(rows: Iterable[dict[str, Any]], shown: str = "{device}; torch {torch}; {date}") -> str:
    """The machines of rows, each once, in words."""
    found = ", or ".join(dict.fromkeys(shown.format(**row["machine"]) for row in rows))
    return found.replace(", 1 threads", ", 1 thread")


def record(name: str, rows: list[dict[str, Any]], text: str, page: str) -> None:
    """Write results/<name>.json, and insert the table between its markers in docs/<page>.

    Rows that were kept from earlier calls have their own "machine".
    """
    RESULTS.mkdir(exist_ok=True)
    about = machine()
    (RESULTS / f"{name}.json").write_text(
        json.dumps({"machine": about, "rows": rows}, indent=2) + "\n", encoding="utf-8"
    )
    on = machines([row for row in rows if "machine" in row] or [{"machine": about}])
    where = f"({on}; `python -m benchmarks.{name}`)"
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    path = DOCS / page
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{begin}\n\n{text}\n\n{where}\n\n{end}{after}", encoding="utf-8")
    print(f"{text}\n\n{where}")
