"""The parser of every command, and the values of a config on a command line. No torch here.

The words of a command line are read in their order: `--config FILE` merges a file into the values collected before it,
`--section.key VALUE` sets one key. Everything else on the line is argparse's.
"""

import argparse
import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Literal, NoReturn, get_args, get_origin

from minitx.config import yaml_files
from minitx.config.errors import ConfigError, did_you_mean
from minitx.config.schema import Config, merged
from minitx.config.validation import expected, keys, shown
from minitx.config.yaml_files import Values, overridden


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError instead of leaving the process, and takes options anywhere.

    A configured one also takes `--config FILE` and `--section.key VALUE`, collected in `values` of what is parsed.
    """

    def __init__(self, configured: bool = False, **kwargs: Any) -> None:
        wide: Any = partial(argparse.HelpFormatter, max_help_position=8, width=100)  # keys are long
        super().__init__(allow_abbrev=False, formatter_class=wide, **kwargs)
        self.configured = configured

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse the command line; raises ConfigError for an unknown argument, or a value that does not fit."""
        words, values = read_config(args) if self.configured else (args, {})
        parsed, strange = self.parse_known_intermixed_args(words, namespace)
        if strange:
            name = strange[0].partition("=")[0]
            if name.startswith("-"):
                known = [option for action in self._actions for option in action.option_strings if option[1] == "-"]
                raise ConfigError(f"unknown option {name}: {did_you_mean(name, known)}")
            hint = f"; to set a key, write --{name} VALUE" if self.configured else ""
            raise ConfigError(f"unexpected argument {name!r}{hint}")
        parsed.values = values
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise argparse's complaint."""
        raise ConfigError(message)


def config_parser(**kwargs: Any) -> Parser:
    """A parser for a whole Config; its help lists every key."""
    usage = f"{kwargs.get('prog', 'minitx')} [--config FILE] [--section.key VALUE] ..."
    parser = Parser(configured=True, usage=usage, **kwargs)
    parser.add_argument("--config", metavar="FILE", help="a YAML file; several may be given, later ones win")
    parser.add_argument("--print_config", action="store_true", help="print the config with all its defaults, and stop")
    docs, groups = field_docs(Config), {}
    for key, field in keys(Config):
        if dataclasses.is_dataclass(field.annotation):
            groups[key] = parser.add_argument_group(key)
            docs = docs | {f"{key}.{name}": text for name, text in field_docs(field.annotation).items()}
            continue
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else None
        default = shown(field.get_default(call_default_factory=True))
        text = f"{docs[key]} ({expected(field)}; default: {default})".replace("%", "%%")
        group = groups.get(key.rpartition(".")[0], parser)
        group.add_argument(f"--{key}", metavar="VALUE", choices=choices, help=text)
    return parser


@cache
def field_docs(kind: Any) -> dict[str, str]:
    """The docstring of every field of a dataclass, by name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def read_config(words: Sequence[str]) -> tuple[list[str], Values]:
    """Split the words of a command line into those that are not about a config, and the values of those that are."""
    sections = "|".join(field.name for field in dataclasses.fields(Config))  # --model "{d_model: 32}" sets several keys
    others: list[str] = []
    values: Values = {}
    pending: dict[str, str] = {}  # keys set since the last file
    waiting = iter(words)
    for word in waiting:
        found = re.fullmatch(rf"--(config|{sections}|[a-z]+(?:\.\w+)+)(?:=(.*))?", word, re.DOTALL)
        if found is None:
            others.append(word)
            continue
        key, text = found.groups()
        if text is None and ((text := next(waiting, None)) is None or text.startswith("--")):
            raise ConfigError(f"{key}: expected a value")
        if key != "config":
            pending[key] = text
            continue
        values, pending = merged(overridden(values, pending), yaml_files.read(text)), {}
    return others, overridden(values, pending)
