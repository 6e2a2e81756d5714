"""`minitx train`, `describe` and `sweep`: from a config."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from minitx.checkpoints.atomic_files import writable
from minitx.cli import sweeping
from minitx.cli.source_options import check_config
from minitx.config.errors import ConfigError
from minitx.config.parser import Parser


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
    parser.add_argument("--plot", metavar="FILE", help="draw positions and learning rate into this .png file")


def describe(parsed: Namespace) -> None:
    """Print a config's size and cost, and draw it."""
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


def sweep(parsed: Namespace) -> None:
    """Train a grid of settings."""
    _check(parsed.values)
    sweeping.run(parsed)


def _check(values: Mapping[str, Any]) -> None:
    """Refuse a missing or mistyped config before torch is loaded."""
    check_config(values)
    if not values.get("data"):
        raise ConfigError("there is nothing to train on: give --config FILE (see configs/), or --data.name NAME")
