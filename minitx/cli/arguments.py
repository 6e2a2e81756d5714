"""Arguments that several commands share."""

import json
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from minitx.checkpoints.atomic_files import written_whole
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
        path = Path(text)
        existed = path.exists()
        try:
            with path.open("ab"):
                pass
        except OSError as error:
            raise ArgumentTypeError(f"{path} cannot be written ({error.strerror})") from None
        if not existed:
            path.unlink()
        return path

    return check


def writable_folder(path: str) -> None:
    """Create a folder where it is missing; a ConfigError if it cannot be written."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"the folder {path} cannot be written ({error.strerror})") from None


def write_json(path: Path, value: object) -> None:
    """Write indented JSON."""
    with written_whole(path) as file:
        file.write(f"{json.dumps(value, indent=2)}\n".encode())
