"""Arguments that several commands share."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from minitx.checkpoints.atomic_files import writable
from minitx.config.errors import ConfigError
from minitx.config.parser import Parser, field_docs


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


def add_options(parser: Parser, kind: type, names: Iterable[str]) -> None:
    """Add fields of a dataclass as `--field`, explained by its docstring; a default of False makes a flag."""
    docs, hints = field_docs(kind), get_type_hints(kind)
    for name in names:
        default, inner = getattr(kind, name), get_args(hints[name]) or (hints[name],)
        options: dict[str, Any] = {"type": inner[0]}
        if default is False:
            options = {"action": "store_true"}
        elif get_origin(inner[0]) is list:  # given once for each
            options = {"action": "append", "metavar": "TEXT"}
        elif bool in inner:
            options = {"type": _truth_or_text}
        parser.add_argument(f"--{name}", default=default, help=docs[name].replace("%", "%%"), **options)


def _truth_or_text(text: str) -> bool | str:
    return {"true": True, "false": False}.get(text.lower(), text)
