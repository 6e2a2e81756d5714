"""`minitx train`, `describe` and `sweep`: commands that take a config. Torch is imported after the checks."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minitx.checkpoints.atomic_files import writable
from minitx.cli.source_options import check_config
from minitx.config.errors import ConfigError
from minitx.config.parser import Parser
from minitx.sweeps import grid


def train_arguments(parser: Parser) -> None:
    """Add the arguments of `minitx train` beside a config's."""
    parser.add_argument("--resume", action="store_true", help="continue the newest run of this name")
    parser.add_argument(
        "--init_from",
        metavar="CHECKPOINT",
        help="a checkpoint file or run folder: start a new run with its weights, its model and, for text, its "
        "tokenizer; keys of model that the config leaves out are the checkpoint's",
    )


def train(parsed: Namespace) -> None:
    """Train a model."""
    _check(parsed.values)
    from minitx.training.api import train_config

    train_config(parsed.values, parsed.resume, parsed.init_from)


def describe_arguments(parser: Parser) -> None:
    """Add the arguments of `minitx describe` beside a config's."""
    parser.add_argument("--plot", metavar="FILE", help="plot positions and learning rate into this .png file")


def describe(parsed: Namespace) -> None:
    """Print a config's size and cost, and plot it."""
    _check(parsed.values)
    if parsed.plot and not parsed.plot.lower().endswith(".png"):
        raise ConfigError(f"--plot takes a .png file, got {parsed.plot}")
    picture = writable(parsed.plot) if parsed.plot else None
    from minitx.training.describe import describe
    from minitx.training.resolve import resolve

    run = resolve(parsed.values)
    print(describe(run))
    if picture is not None:
        from minitx.plotting.config_pictures import draw

        print(f"\n{draw(run, picture)}")


def sweep_arguments(parser: Parser) -> None:
    """Add the arguments of `minitx sweep` beside a config's."""
    parser.add_argument(
        "--set", action="append", type=str, default=None, help="KEY=VALUE,VALUE,...: values to try; once for each key"
    )
    parser.add_argument("--seeds", type=int, default=3, help="train each setting with the seeds 1 to N")
    parser.add_argument("--lengths", type=str, default=None, help="for example 1:40: also by length of the question")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; on GPUs one on each")
    parser.add_argument("--out", type=str, default=None, help="folder of table and plot; default: the sweep's own")


def sweep(parsed: Namespace) -> None:
    """Train a grid of settings; exit with code 1 when a run has failed."""
    _check(parsed.values)
    settings = grid.parse(parsed.set or [])
    from minitx.sweeps.plan import plan
    from minitx.sweeps.sweep import sweep

    planned = plan(parsed.values, settings, parsed.seeds, parsed.lengths)
    _, failed = sweep(planned, parsed.jobs, Path(parsed.out) if parsed.out else None)
    if failed:
        print("\n".join([f"{len(failed)} failed:", *failed]), file=sys.stderr)
        raise SystemExit(1)


def _check(values: Mapping[str, Any]) -> None:
    """Reject a missing or mistyped config before torch is imported."""
    check_config(values)
    if not values.get("data"):
        raise ConfigError("there is nothing to train on: give --config FILE (see configs/), or --data.name NAME")
