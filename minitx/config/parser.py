"""From YAML and command line to checked values, with one clear sentence for whatever does not fit. No torch here.

jsonargparse does the parsing; this module adds "did you mean", and treats the open sections of a config (a registered
`name` plus that class's own options) with the same checks as the typed ones.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import docstring_parser
import yaml
from jsonargparse import ActionConfigFile, ArgumentParser, Namespace

from minitx.config import bundled
from minitx.config import yaml_checks as plain
from minitx.config.messages import check_none, did_you_mean, explain, keys, unknown_key
from minitx.config.schema import Config, Options

OPEN_SECTIONS = ("data", "model.position", "model.position_ids")
"""The sections that hold a registered name and the options of its class."""


class Parser(ArgumentParser):
    """A parser whose complaints are one sentence: it raises ValueError instead of leaving the process."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)  # an abbreviation is a typo that happens to fit
        self.from_files: dict[str, Any] = {}  # what the config files said of the open sections
        self.words: list[str] = []  # the command line itself
        self._named: list[str] = []  # keys on it

    def parse_args(self, args: Any = None, *rest: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parse the command line, and remember which keys it names."""
        self.words = sys.argv[1:] if args is None else list(args)
        self._named = [word.removeprefix("--").partition("=")[0] for word in self.words if word.startswith("--")]
        others, inner = _take_inner(self.words, [section for section in OPEN_SECTIONS if section in keys(self)])
        parsed = super().parse_args(others, *rest, **kwargs)
        for section, key, option, text in sorted(inner, key=lambda one: one[2] != "name"):
            options, value = parsed[section], yaml.safe_load(text)
            within = options.get(key)
            other = option == "name" and isinstance(within, dict) and within.get("name") != value
            options[key] = {**(within if isinstance(within, dict) and not other else {}), option: value}
        return parsed

    def said(self, section: str, key: str) -> bool:
        """Whether the command line itself set a key of a section, the whole section, or something below the key."""
        full = f"{section}.{key}"
        return any(name in (section, full) or name.startswith(f"{full}.") for name in self._named)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say it in our words."""
        raise ValueError(explain(message, keys(self)))


def _take_inner(args: list[str], sections: Iterable[str]) -> tuple[list[str], list[tuple[str, str, str, str]]]:
    """Take out of the words those about an own option of an option in these sections: --data.tokenizer.size 500.

    jsonargparse would set the whole option anew with each of them. A new `name` drops what belonged to another, as it
    does for a section.

    Returns:
        The other words, and for each that was taken its section, key, option and value.

    Raises:
        ValueError: a key without a value.
    """
    section_names = "|".join(map(re.escape, sections))
    others, taken = [], []
    words = iter(args)
    for word in words:
        found = re.fullmatch(rf"--({section_names})\.(\w+)\.(\w+)(?:=(.*))?", word, re.DOTALL)
        if found is None:
            others.append(word)
            continue
        section, key, option, value = found.groups()
        if value is None and (value := next(words, None)) is None:
            raise ValueError(f"{section}.{key}.{option}: expected a value")
        taken.append((section, key, option, value))
    return others, taken


class ConfigFile(ActionConfigFile):
    """`--config FILE`. A later file adds to an open section of an earlier one, unless it names another class there."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Read a file into what has been parsed so far."""
        if isinstance(values, str) and not Path(values).is_file():
            named = bundled.configs()
            if values not in named:
                near = "" if set("/.") & set(values) else f", nor a config of that name: {did_you_mean(values, named)}"
                raise ValueError(f"--config: there is no file {values}{near}")
            values = str(named[values])
        if isinstance(values, str):
            _check_sections(plain.read(values), Config(), f"--config: {values}")
        before = {section: cfg.get(section) or {} for section in OPEN_SECTIONS}
        try:
            super().__call__(parser, cfg, values, option_string)
        except TypeError as error:
            raise ValueError(explain(str(error), keys(parser))) from None
        for section, earlier in before.items():
            later = cfg.get(section)
            if isinstance(later, dict) and later.get("name", earlier.get("name")) == earlier.get("name"):
                cfg[section] = {**earlier, **later}
            parser.from_files[section] = cfg.get(section)


def _check_sections(written: Any, kind: Any, where: str, section: str = "") -> None:
    """See that sections hold keys: jsonargparse would take a text in the place of one for the name of another file.

    Args:
        written: what stands in a section.
        kind: the section of a Config that it is to become.
        where: it comes from, for messages.
        section: its key.

    Raises:
        ValueError: no section, or at the top one that there is not.
    """
    if not isinstance(written, dict):
        raise ValueError(f"{section or where}: expected keys and their values, got {written!r:.80}")
    known = {field.name: getattr(kind, field.name) for field in dataclasses.fields(kind)}
    for name, inner in written.items():
        # jsonargparse tells unknown sections, but takes `config` for its own.
        if not section and name not in known and (name == "config" or not isinstance(inner, dict)):
            raise ValueError(unknown_key(name, list(known)))
        if dataclasses.is_dataclass(known.get(name)):
            _check_sections(inner, known[name], where, f"{section}.{name}".lstrip("."))


def config_parser(**kwargs: Any) -> Parser:
    """A parser for a whole Config: `--config FILE` (several, the later wins) and `--section.key value`."""
    parser = Parser(default_env=False, **kwargs)
    parser.add_argument("--config", action=ConfigFile, help="a YAML file; several may be given, later ones win")
    parser.add_argument("--data", type=Options, default={}, help="task: a registered name and its own options")
    for section in ("run", "model", "optimizer", "trainer", "log"):
        kind = type(getattr(Config(), section))
        parser.add_argument(f"--{section}", type=kind, default=kind())
    return parser


def add_options(parser: Parser, kind: type, names: Iterable[str] | None = None) -> None:
    """Every field of a dataclass, or those named, as `--field`, explained by its docstring; False makes a flag."""
    explained = {entry.arg_name: entry.description for entry in docstring_parser.parse_from_object(kind).params}
    types = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if names is not None and field.name not in names:
            continue
        told: dict[str, Any] = {"help": explained[field.name]}
        if field.default is False:
            told |= {"action": "store_true"}
        elif types[field.name] == list[str] | None:  # said once for each
            told |= {"action": "append", "type": str, "default": None}
        else:
            told |= {"type": types[field.name], "default": field.default}
        parser.add_argument(f"--{field.name}", **told)


def to_config(parser: Parser, parsed: Namespace) -> Config:
    """The Config in what a config_parser has parsed."""
    for section in Config.__dataclass_fields__:
        if not isinstance(parsed[section], Namespace | dict) and not dataclasses.is_dataclass(parsed[section]):
            raise ValueError(f"{section}: expected keys and their values, got {parsed[section]!r}")
    for section, written in parser.from_files.items():
        now = parsed.get(section)
        if isinstance(now, dict) and isinstance(written, dict) and now.get("name") != written.get("name"):
            # Another class was named on the command line: what the files said of the one before does not concern it.
            parsed[section] = {key: value for key, value in now.items() if parser.said(section, key)}
    built = parser.instantiate(parsed)
    config = Config(**{name: built[name] for name in Config.__dataclass_fields__})
    for section in (
        "run",
        "model",
        "optimizer",
        "optimizer.schedule",
        "trainer",
        "log",
        "log.attention",
        "log.embeddings",
    ):
        part = attrgetter(section)(config)
        check_none(type(part), vars(part), section)
    return config


def config_from_dict(values: Mapping[str, Any]) -> Config:
    """The Config in plain JSON types (Config.to_dict), checked as a YAML file is.

    Raises:
        ValueError: a key or a value that does not fit.
    """
    plain.check(values, "the config")
    _check_sections(values, Config(), "the config")
    parser = _whole_parser()
    return to_config(parser, parser.parse_object(copy.deepcopy(dict(values))))


@cache
def _whole_parser() -> Parser:
    """A config_parser for what is no command line and leaves nothing in it; making one is slow, so once is enough."""
    return config_parser()
