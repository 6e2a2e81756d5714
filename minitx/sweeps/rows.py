"""What is known of each run: one line of JSON, appended when it has finished. No torch.

A run is known by its whole config, so a sweep with another one is another sweep, even in the same folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""What sweeps.worker.carry_out returns, as plain JSON types."""


def fingerprint(config: dict[str, Any]) -> str:
    """What tells one experiment from another: a hash of a resolved config (Config.to_dict), wherever it lands."""
    run = {key: value for key, value in config["run"].items() if key not in ("folder", "name")}
    return hashlib.sha256(json.dumps({**config, "run": run}, sort_keys=True).encode()).hexdigest()[:16]


def read(path: Path) -> list[Row]:
    """The rows of a file, oldest first; a line that somebody was killed while writing is passed over."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def append(path: Path, row: Row) -> None:
    """Add a row, on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write(("\n" if torn and path.stat().st_size else "") + json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def latest(rows: Sequence[Row], wanted: str, lengths: range | None) -> Row | None:
    """The newest row of an experiment in which all these lengths were asked for."""
    for row in reversed(rows):
        if row["fingerprint"] == wanted and covers(row, lengths):
            return row
    return None


def covers(row: Row, lengths: range | None) -> bool:
    """Whether all these lengths were asked for when the row was made."""
    if lengths is None:
        return True
    asked = row["lengths"]
    return asked is not None and asked[0] <= lengths[0] and lengths[-1] <= asked[1]
