"""`minitx sweep`: its arguments, and what it does with them. Imports torch only when there is something to do."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from minitx.config.parser import Parser
from minitx.sweeps import grid


def arguments(parser: Parser) -> None:
    """Add those that are not a config's."""
    parser.add_argument(
        "--set", action="append", type=str, default=None, help="KEY=VALUE,VALUE,...: values to try; once for each key"
    )
    parser.add_argument("--seeds", type=int, default=3, help="train each setting with the seeds 1 to N")
    parser.add_argument("--lengths", type=str, default=None, help="for example 1:40: also by length of the question")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; on GPUs one on each")
    parser.add_argument("--out", type=str, default=None, help="folder of table and picture; default: the sweep's own")


def run(parsed: Namespace) -> None:
    """Train the grid; leaves the process with code 1 when a run has failed."""
    grid_values = grid.parse(parsed.set or [])
    from minitx.sweeps.plan import plan
    from minitx.sweeps.sweep import sweep

    _, failed = sweep(
        plan(parsed.values, grid_values, parsed.seeds, parsed.lengths),
        parsed.jobs,
        Path(parsed.out) if parsed.out else None,
    )
    if failed:
        print("\n".join([f"{len(failed)} failed:", *failed]), file=sys.stderr)
        raise SystemExit(1)
