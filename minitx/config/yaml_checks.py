"""YAML from anywhere, read as plain values and refused before anything is built from them.

A YAML file holds names and numbers. Nothing in it is imported, called, or looked up in the environment.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from minitx.config.errors import ConfigError

MAX_BYTES = 2**20
"""Size of a config file; a whole experiment takes about two thousand bytes."""
MAX_VALUES = 20_000
"""Values of a config, each counted wherever it occurs: an alias may repeat millions."""
MAX_DEPTH = 20
"""Levels of sections within sections; a config has four."""


class Loader(yaml.SafeLoader):
    """The safe loader, for which 1e-3 is a number as in YAML 1.2."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+"), list("-+0123456789")
)


def parse(text: str) -> Any:
    """A value on the command line: YAML, or the text itself where it is none."""
    try:
        value = yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    check(value, "the command line")
    return value


def read(path: str) -> Any:
    """The values in a config file, checked; see check.

    Raises:
        ConfigError: no file, too large, not UTF-8, not YAML, or a key written twice.
    """
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise ConfigError(f"--config: {path} must be a YAML file of at most {MAX_BYTES:,} bytes, got a larger one")
        content = Path(path).read_bytes().decode()
        tree = yaml.compose(content, Loader=Loader)
        _check_keys(path, tree)
        values = yaml.load(content, Loader)
    except OSError as error:
        raise ConfigError(f"--config: {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config: {path} must be YAML in UTF-8, got another byte at place {error.start}") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ConfigError(f"--config: {path} must be YAML, got {line}{error.problem}") from None
    except RecursionError:
        raise ConfigError(f"--config: {path} must have sections within sections, got them nested too deeply") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config: {path} must be YAML, got {' '.join(str(error).split())}") from None
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"--config: {path} holds a value that cannot be read ({error})") from None
    check(values, f"--config: {path}")
    return values


def check(values: Any, where: str) -> None:
    """See that values are plain: sections, lists, texts, numbers, truth and null, and not too many of them.

    Args:
        values: of a config, or of a part of one.
        where: they come from, for messages.

    Raises:
        ConfigError: anything else, or a key with which something would be imported.
    """
    waiting, seen = [("", values, 0)], 0
    while waiting:
        key, value, depth = waiting.pop()
        seen += 1
        if seen > MAX_VALUES or depth > MAX_DEPTH:
            raise ConfigError(
                f"{where} must hold at most {MAX_VALUES:,} values in {MAX_DEPTH} levels, got more under {key[:60]!r}"
            )
        if isinstance(value, dict):
            for name, inner in value.items():
                if not isinstance(name, str):
                    raise ConfigError(
                        f"{where} must have names for keys, got {name!r:.60} in {key or 'its first level'}"
                    )
                waiting.append((f"{key}.{name}".lstrip("."), inner, depth + 1))
        elif isinstance(value, list | tuple):
            waiting += [(key, inner, depth + 1) for inner in value]
        elif isinstance(value, set | bytes):
            raise ConfigError(f"{where} must hold texts, numbers, lists and sections, got {value!r:.60} for {key}")


def _check_keys(path: str, tree: Any) -> None:
    """Refuse a key that is written twice in one section: one of the two would be lost."""
    waiting, seen = [tree], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            names: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in names and key.value != "<<":
                    line = key.start_mark.line + 1
                    raise ConfigError(
                        f"--config: {path} must name each key once, got {key.value!r} again in line {line}"
                    )
                names.add(str(key.value))
                waiting.append(value)
        else:
            waiting += node.value
