"""Results of finished runs, one line of JSON each. No torch.

A row belongs to the fingerprint of its whole config: a changed config is another experiment, even in the same folder.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]  # the result of sweeps.worker.run, as plain JSON types


def fingerprint(config: dict[str, Any]) -> str:
    """A hash of a resolved config (Config.to_dict) without the name and folder of its run."""
    run = {key: value for key, value in config["run"].items() if key not in ("folder", "name")}
    return hashlib.sha256(json.dumps({**config, "run": run}, sort_keys=True).encode()).hexdigest()[:16]


def read(path: Path) -> list[Row]:
    """The rows of a file, oldest first; a line left incomplete by a killed process is skipped."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def append(path: Path, row: Row) -> None:
    """Append a row, flushed to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    incomplete = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    with path.open("a") as file:
        file.write("\n" * incomplete + json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def latest(rows: Sequence[Row], fingerprint: str, lengths: range | None) -> Row | None:
    """The newest row of an experiment that was measured at all these lengths."""
    for row in reversed(rows):
        measured = row["lengths"]
        covers = lengths is None or (measured and measured[0] <= lengths[0] and lengths[-1] <= measured[1])
        if row["fingerprint"] == fingerprint and covers:
            return row
    return None
