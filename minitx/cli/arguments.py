"""Arguments that several commands share."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from minitx.checkpoints.atomic_files import writable
from minitx.config.errors import ConfigError
from minitx.config.parser import Parser


def add_checkpoint(parser: Parser) -> None:
    """Add a trained model and the device that it runs on."""
    parser.add_argument("checkpoint", help="a checkpoint file, or a run folder (its newest version's best)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps, ...")


def output(*suffixes: str) -> Callable[[str], Path]:
    """The type of an argument that names a file to write: it can be written, and has one of these suffixes."""

    def check(text: str) -> Path:
        if suffixes and not text.lower().endswith(suffixes):
            raise ArgumentTypeError(f"must end in {', '.join(suffixes)}, got {text}")
        try:
            return writable(text)
        except ConfigError as error:
            raise ArgumentTypeError(str(error)) from None  # argparse would drop the sentence of any ValueError

    return check
