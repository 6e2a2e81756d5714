"""The parser of every command, and the values of a config on a command line. No torch here.

The words of a command line are read in their order: `--config FILE` merges a file into the values collected before it,
`--section.key VALUE` sets one key. Everything else on the line is argparse's.
"""

import argparse
import ast
import dataclasses
import inspect
import itertools
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from minitx.config import yaml_files
from minitx.config.errors import ConfigError, counted, did_you_mean
from minitx.config.schema import OPEN_SECTIONS, Config, merged, open_section
from minitx.config.validation import expected, keys, shown
from minitx.config.yaml_files import Values, overridden


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError instead of leaving the process, and takes options anywhere.

    A configured one also takes `--config FILE` and `--section.key VALUE`, collected in `values` of the result;
    `dropped` has a sentence for each section whose options another name on the command line drops.
    """

    def __init__(self, configured: bool = False, **kwargs: Any) -> None:
        width = min(100, shutil.get_terminal_size((102, 24)).columns - 2)
        wide: Any = partial(argparse.HelpFormatter, max_help_position=8, width=width)  # keys are long
        super().__init__(allow_abbrev=False, formatter_class=wide, **kwargs)
        self.configured = configured
        for kind, named in ((int, "an integer"), (float, "a number")):
            self.register("type", kind, partial(_number, kind, named))  # argparse's own errors name Python's types
        self.register("type", Path, lambda text: Path(os.path.expanduser(text)))  # not every shell does after --name=

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse the command line; raises ConfigError for an unknown argument, or a value that does not fit."""
        words, values, dropped = read_config(args) if self.configured else (args, {}, [])
        parsed, strange = self.parse_known_intermixed_args(words, namespace)
        if strange:
            name = strange[0].partition("=")[0]
            texts = sum(action.dest in ("text", "texts", "clean", "corrupted") for action in self._actions)
            if name.startswith("-"):
                self.add_keys()
                known = [option for action in self._actions for option in action.option_strings if option[1] == "-"]
                short = [option for option in known if "." not in option]
                own = [f"--{section}.{key}" for section in OPEN_SECTIONS for key in open_section(values, section)]
                near = did_you_mean(name, {*known, *own}, listed=short)
                hint = "; a text that begins with - comes last, after --" if texts and not near.endswith("?") else ""
                raise ConfigError(f"unknown option {name}: {near}{hint}")
            file = name.endswith((".yaml", ".yml")) or name in yaml_files.bundled()
            if self.configured:
                hint = f"; to {f'read it, write --config {name}' if file else f'set a key, write --{name} VALUE'}"
            else:
                hint = "; a text with spaces needs quotes" if texts else ""
                if texts and " " in strange[0]:  # it has them
                    hint = f"; the command takes {counted(texts, 'text')}"
            raise ConfigError(f"unexpected argument {name!r}{hint}")
        outputs: dict[Path, str] = {}
        for name, value in vars(parsed).items():
            if isinstance(value, Path) and (other := outputs.setdefault(value.resolve(), name)) != name:
                raise ConfigError(f"--{other} and --{name} both name {value}: one would replace the other")
        parsed.values, parsed.dropped = values, dropped
        return parsed

    def add_keys(self) -> None:
        """Add `--config` and every key of a Config for help and completion; read_config has removed them."""
        if not self.configured or "--config" in self._option_string_actions:
            return
        self.usage = f"{self.prog} [--config FILE] [--section.key VALUE] ..."
        self.add_argument("--config", metavar="FILE", help="a YAML file; later files and keys override earlier ones")
        groups: dict[str, Any] = {}
        for key, field, text in documented_keys():
            if dataclasses.is_dataclass(field.annotation):
                groups[key] = self.add_argument_group(key)
                continue
            choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else None
            default = shown(field.get_default(call_default_factory=True))
            text = f"{text} ({expected(field)}; default: {default})".replace("%", "%%")
            group = groups.get(key.rpartition(".")[0], self)
            group.add_argument(f"--{key}", metavar="VALUE", choices=choices, help=text)

    def format_help(self) -> str:
        """The help, with every key."""
        self.add_keys()
        return super().format_help()

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file, flush=True)  # argparse's own drops an OSError

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as a ConfigError."""
        raise ConfigError(message.replace("ignored explicit argument", "takes no value, got"))


def _number(kind: Callable[[str], Any], named: str, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected {named}, got {text!r:.80}") from None


def documented_keys() -> Iterator[tuple[str, Any, str]]:
    """Every key of a Config, sections before their own keys: with its field and its docstring."""
    docs: dict[str, Any] = field_docs(Config)
    for key, field in keys(Config):
        if dataclasses.is_dataclass(field.annotation):
            docs[key] = inspect.getdoc(field.annotation)
            docs |= {f"{key}.{name}": text for name, text in field_docs(field.annotation).items()}
        yield key, field, docs[key]


def field_docs(kind: Any) -> dict[str, str]:
    """The docstring of every field of a dataclass, by name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def read_config(words: Sequence[str]) -> tuple[list[str], Values, list[str]]:
    """Split the words of a command line into those that are not about a config, and the values of those that are.

    The third result is a sentence for each open section whose options in the files are dropped for another class.
    """
    sections = "|".join(field.name for field in dataclasses.fields(Config))  # --model "{d_model: 32}" sets several keys
    others: list[str] = []
    values: Values = {}
    pending: list[tuple[str, str]] = []  # keys set since the last file
    waiting = iter(words)
    for word in waiting:
        found = re.fullmatch(rf"--(config|{sections}|[a-z]+(?:\.\w+)+)(?:=(.*))?", word, re.DOTALL)
        if found is None:
            others.append(word)
            continue
        key, text = found.groups()
        if text is None and ((text := next(waiting, None)) is None or text.startswith("--")):
            raise ConfigError(f"--{key}: expected a value")
        if key != "config":
            pending.append((key, text))
            continue
        values, pending = merged(overridden(values, pending), yaml_files.read(text)), []
    final = overridden(values, pending)
    sentences = []
    for section in (*OPEN_SECTIONS, "data.tokenizer"):
        before, after = open_section(values, section), open_section(final, section)
        dropped = [name for name in before if name not in after]
        if dropped and "name" in after:
            names = f"{section}.name {after.get('name')} replaces {before.get('name')}"
            sentences.append(f"{names}; not taken over from the file: {', '.join(dropped)}")
    return others, final, sentences
