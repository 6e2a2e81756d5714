"""YAML read as plain values: nothing in it is imported, called, or looked up in the environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from minitx.config.errors import ConfigError

MAX_BYTES = 2**20
"""Maximum size of a config file; an experiment takes about two thousand."""
MAX_VALUES = 20_000
"""Maximum number of values in a config, each counted wherever it occurs: an alias may repeat millions."""
MAX_DEPTH = 20
"""Maximum nesting of sections; a config has four levels."""


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with 1e-3 as a number (YAML 1.2)."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+"), list("-+0123456789")
)


def parse(text: str) -> Any:
    """Read a value of the command line: YAML, or else the text itself."""
    try:
        value = yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    check(value, "the command line")
    return value


def read(path: str) -> Any:
    """Read a config file; see check.

    Raises:
        ConfigError: no file, too large, not UTF-8, not YAML, or a repeated key.
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
        raise ConfigError(f"--config: {path} must be YAML in UTF-8, got another byte at offset {error.start}") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ConfigError(f"--config: {path} must be YAML, got {line}{error.problem}") from None
    except RecursionError:
        raise ConfigError(f"--config: {path} must have sections within sections, got them nested too deeply") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config: {path} must be YAML, got {' '.join(str(error).split())}") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"--config: {path} holds a value that cannot be read ({error})") from None
    check(values, f"--config: {path}")
    return values


def check(values: Any, where: str) -> None:
    """Check that values are plain JSON types of limited number and depth.

    Args:
        values: of a config, or of a part of one.
        where: their source, for messages.

    Raises:
        ConfigError: another type, a key that is not a string, or too many values.
    """
    pending, count = [("", values, 0)], 0
    while pending:
        key, value, depth = pending.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise ConfigError(
                f"{where} must hold at most {MAX_VALUES:,} values in {MAX_DEPTH} levels, got more under {key[:60]!r}"
            )
        if isinstance(value, dict):
            for name, inner in value.items():
                if not isinstance(name, str):
                    raise ConfigError(
                        f"{where} must have names for keys, got {name!r:.60} in {key or 'its first level'}"
                    )
                pending.append((f"{key}.{name}".lstrip("."), inner, depth + 1))
        elif isinstance(value, list | tuple):
            pending += [(key, inner, depth + 1) for inner in value]
        elif isinstance(value, set | bytes):
            raise ConfigError(f"{where} must hold texts, numbers, lists and sections, got {value!r:.60} for {key}")


def _check_keys(path: str, tree: Any) -> None:
    """Refuse a repeated key in one section, whose first value YAML would drop."""
    pending, seen = [tree], set()
    while pending:
        node = pending.pop()
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
                pending.append(value)
        else:
            pending += node.value
