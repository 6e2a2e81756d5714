"""From YAML files and the command line to plain values, and to a Config. No torch here.

The words of a command line are read in their order: `--config FILE` merges a file into the values collected before it,
`--section.key VALUE` sets one key. Everything else on the line is argparse's.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from minitx.config import bundled, yaml_checks
from minitx.config.errors import ConfigError, did_you_mean
from minitx.config.schema import OPEN_SECTIONS, Config, config_from_dict, keys
from minitx.config.validation import expected, shown

Values = dict[str, Any]


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError instead of leaving the process, and takes options anywhere.

    Args:
        configured: also take `--config FILE` and `--section.key VALUE`, collected in `values` of what is parsed.
        kwargs: argparse's own.
    """

    def __init__(self, configured: bool = False, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **kwargs)
        self.configured = configured

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse the command line.

        Raises:
            ConfigError: an unknown argument, or a value that does not fit.
        """
        words = sys.argv[1:] if args is None else list(args)
        values: Values = {}
        if self.configured:
            words, values = read_config(words)
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


class _Formatter(argparse.HelpFormatter):
    """Help with room for long keys: each explanation is on lines of its own."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=8, width=100)


def config_parser(**kwargs: Any) -> Parser:
    """A parser for a whole Config; its help lists every key."""
    parser = Parser(
        configured=True, usage=f"{kwargs.get('prog', 'minitx')} [--config FILE] [--section.key VALUE] ...", **kwargs
    )
    parser.add_argument("--config", metavar="FILE", help="a YAML file; several may be given, later ones win")
    docs = explanations(Config)
    groups: dict[str, Any] = {}
    for key, field in keys():
        section = key.rpartition(".")[0] or "data"
        group = groups.get(section) or groups.setdefault(section, parser.add_argument_group(section))
        choices = (
            [str(each) for each in get_args(field.annotation)] if get_origin(field.annotation) is Literal else None
        )
        default = field.get_default(call_default_factory=True)
        text = f"{docs[key]} ({expected(field)}; default: {shown(default)})"
        group.add_argument(f"--{key}", metavar="VALUE", choices=choices, help=text.replace("%", "%%"))
    return parser


def explanations(kind: Any, within: str = "") -> dict[str, str]:
    """The docstring of every field of a dataclass, by dotted key; fields that are sections are followed."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    hints = get_type_hints(kind)
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            name = field.target.id  # type: ignore[union-attr]
            key = f"{within}.{name}" if within else name
            if dataclasses.is_dataclass(hints[name]):
                found |= explanations(hints[name], key)
            else:
                found[key] = " ".join(text.value.value.split())  # type: ignore[attr-defined]
    return found


def add_options(parser: Parser, kind: type, names: Iterable[str] | None = None) -> None:
    """Add every field of a dataclass, or those named, as `--field`, explained by its docstring; False makes a flag."""
    docs, hints = explanations(kind), get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if names is not None and field.name not in names:
            continue
        options: dict[str, Any] = {"help": docs[field.name].replace("%", "%%"), "default": field.default}
        inner = get_args(hints[field.name]) or (hints[field.name],)
        if field.default is False:
            options["action"] = "store_true"
        elif get_origin(inner[0]) is list:  # given once for each
            options |= {"action": "append", "metavar": "TEXT"}
        elif bool in inner:
            options["type"] = _truth_or_text
        else:
            options["type"] = inner[0]
        parser.add_argument(f"--{field.name}", **options)


def _truth_or_text(text: str) -> bool | str:
    return {"true": True, "false": False}.get(text.lower(), text)


def read_config(words: Sequence[str]) -> tuple[list[str], Values]:
    """Split the words of a command line into those that are not about a config, and the values of those that are.

    Raises:
        ConfigError: a key without a value, or a file that cannot be read.
    """
    others: list[str] = []
    values: Values = {}
    pending: dict[str, str] = {}  # keys set since the last file
    waiting = iter(words)
    for word in waiting:
        found = re.fullmatch(r"--(config|data|[a-z]+(?:\.\w+)+)(?:=(.*))?", word, re.DOTALL)
        if found is None:
            others.append(word)
            continue
        key, text = found.groups()
        if text is None and ((text := next(waiting, None)) is None or text.startswith("--")):
            raise ConfigError(f"{key}: expected a value")
        if key != "config":
            pending[key] = text
            continue
        values, pending = merged(overridden(values, pending), read_file(text)), {}
    return others, overridden(values, pending)


def read_file(name: str) -> Values:
    """The values in a YAML file, given by its path or by the name of a bundled config.

    Raises:
        ConfigError: no such file, or no YAML file of sections.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        known = bundled.configs()
        if name not in known:
            near = "" if set("/.") & set(name) else f", nor a config of that name: {did_you_mean(name, known)}"
            raise ConfigError(f"--config: there is no file {name}{near}")
        path = known[name]
    values = yaml_checks.read(str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"--config: {path}: expected keys and their values, got {values!r:.80}")
    return values


def merged(before: Any, after: Any, section: str = "") -> Any:
    """Merge values into earlier ones, section by section; an open section that names another class replaces it."""
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return after
    is_open = section.startswith(OPEN_SECTIONS)
    if is_open and "name" in after and "name" in before and after["name"] != before["name"]:
        return dict(after)
    return {
        **before,
        **{
            name: merged(before.get(name), value, f"{section}.{name}" if section else name)
            for name, value in after.items()
        },
    }


def nested(key: str, value: Any) -> Values:
    """A value under its dotted key: {"trainer": {"max_steps": 300}} for trainer.max_steps."""
    for name in reversed(key.split(".")):
        value = {name: value}
    nested_values: Values = value
    return nested_values


def overridden(values: Mapping[str, Any], settings: Mapping[str, Any]) -> Values:
    """Set keys in values, by dotted key; a text is read as on the command line.

    A `name` is set first, since naming another class drops the options of the one before.
    """
    for key, value in sorted(settings.items(), key=lambda setting: not setting[0].endswith(".name")):
        if isinstance(value, str) and (key not in _texts() or value == "null"):
            value = yaml_checks.parse(value)
        values = merged(values, nested(key, value))
    return dict(values)


@cache
def _texts() -> frozenset[str]:
    """The keys whose values are texts, which `--run.name 2024` may set as well."""
    return frozenset(key for key, field in keys() if field.annotation in (str, str | None))


def config_from_words(words: Sequence[str]) -> Config:
    """The Config of a command line: `--config FILE` and `--section.key value`, nothing else.

    Raises:
        ConfigError: with a line for each mistake.
    """
    return config_from_dict(config_parser().parse_args(words).values)
