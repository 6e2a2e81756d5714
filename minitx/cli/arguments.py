"""Arguments that several commands share."""

import json
import os
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from minitx.checkpoints.atomic_files import written_whole
from minitx.cli.config_parser import Parser, field_docs
from minitx.config.errors import ConfigError


def add_checkpoint(parser: Parser) -> None:
    """Add a trained model and the device that it runs on."""
    parser.add_argument("checkpoint", help="a checkpoint file, or a run folder (its newest version's best)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps, ...")


def output(*suffixes: str) -> Callable[[str], Path]:
    """The type of an argument that names a file to write: it can be written, and has one of these suffixes."""

    def check(text: str) -> Path:
        if suffixes and not text.lower().endswith(suffixes):
            raise ArgumentTypeError(f"must end in {', '.join(suffixes)}, got {text}")
        path = Path(os.path.expanduser(text))
        if path.is_fifo():  # opening and closing it would end its reader
            return path
        existed = path.exists()
        try:
            if path.is_file() and path.parent != Path("/dev"):  # a new file in its folder will replace it
                tempfile.TemporaryFile(dir=path.parent).close()
            with path.open("ab"):
                pass
        except OSError as error:
            raise ArgumentTypeError(f"{path} cannot be written ({error.strerror})") from None
        if not existed:
            path.resolve().unlink()  # of a link to a missing file, that file
        return path

    return check


def writable_folder(path: str | Path) -> None:
    """Create a folder if it is missing; a ConfigError if it cannot be written."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"the folder {path} cannot be written ({error.strerror})") from None


def add_json(parser: Parser, contents: str) -> None:
    """Add --json, the file that write_json writes."""
    parser.add_argument("--json", type=output(), help=f"also write the {contents} to this file")


def write_json(path: Path | None, value: object) -> None:
    """Write indented JSON if --json names a file."""
    if path is not None:
        with written_whole(path) as file:
            file.write(f"{json.dumps(value, indent=2)}\n".encode())


def add_options(parser: Parser, kind: type, names: Iterable[str]) -> None:
    """Add fields of a dataclass as `--field`, with their docstrings as help; a default of False makes a flag."""
    docs, hints = field_docs(kind), get_type_hints(kind)
    for name in names:
        default, inner = getattr(kind, name), get_args(hints[name]) or (hints[name],)
        options: dict[str, Any] = {"type": inner[0]}
        if default is False:
            options = {"action": "store_true"}
        elif get_origin(inner[0]) is list:  # repeated for each text
            options = {"action": "append", "metavar": "TEXT"}
        elif bool in inner:
            options = {"type": lambda text: {"true": True, "false": False}.get(text.lower(), text)}
        parser.add_argument(f"--{name}", default=default, help=docs[name].replace("%", "%%"), **options)
