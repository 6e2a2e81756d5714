"""`minitx train`, `describe` and `sweep`: from a config."""

from __future__ import annotations

from jsonargparse import Namespace

from minitx.checkpoints.atomic_files import writable
from minitx.cli import sweeping as sweeps
from minitx.config.parser import Parser, to_config


def train_arguments(parser: Parser) -> None:
    """Of `minitx train`, beside a config's."""
    parser.add_argument("--resume", action="store_true", help="go on with the newest run of this name")
    parser.add_argument(
        "--init_from",
        type=str,
        default=None,
        help="a checkpoint file or run folder: begin a new run with its weights, its model and, for text, its "
        "tokenizer; keys of model that the config leaves out are the checkpoint's",
    )


def train(parser: Parser, parsed: Namespace) -> None:
    """Train a model."""
    _need_data(to_config(parser, parsed).data)
    from minitx.training.api import run_parsed

    run_parsed(parser, parsed, parsed.resume, parsed.init_from)


def describe_arguments(parser: Parser) -> None:
    """Of `minitx describe`, beside a config's."""
    parser.add_argument("--plot", type=str, default=None, help="draw positions and learning rate into this .png file")


def describe(parser: Parser, parsed: Namespace) -> None:
    """Tell a config's size and cost, and draw it."""
    config = to_config(parser, parsed)
    _need_data(config.data)
    if parsed.plot and not parsed.plot.lower().endswith(".png"):
        raise ValueError(f"--plot takes a .png file, got {parsed.plot}")
    picture = writable(parsed.plot) if parsed.plot else None
    from minitx.training.describe import describe

    print(describe(config))
    if picture is not None:
        from minitx.plotting.config_pictures import draw

        print(f"\n{draw(config, picture)}")


def sweep(parser: Parser, parsed: Namespace) -> None:
    """Train a grid of settings."""
    _need_data(parsed.data)
    sweeps.run(parser, parsed)


def _need_data(data: object) -> None:
    """Say what is missing when somebody starts without a config, before torch is loaded."""
    if not data:
        raise ValueError("there is nothing to train on: give --config FILE (see configs/), or --data.name NAME")
