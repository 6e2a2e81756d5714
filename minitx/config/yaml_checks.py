"""Config files as anybody may have written them: read as plain values, and refused before anything is made of them.

What stands in a YAML file is names and numbers. Nothing in it is imported, called, or looked up in the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LARGEST = 2**20
"""Bytes of a config file, at most; a whole experiment takes about two thousand."""
MOST = 20_000
"""Values of a config, at most, each counted wherever it stands: an anchor may stand for millions."""
DEEPEST = 20
"""Levels of sections within sections; a config has four."""
CALLING = ("class_path", "init_args", "dict_kwargs")
"""Keys with which jsonargparse would take a value for something to import and call."""


def read(path: str) -> Any:
    """The values in a config file, checked; see check.

    Raises:
        ValueError: no file, too large, not UTF-8, not YAML, or a key written twice.
    """
    try:
        if Path(path).stat().st_size > LARGEST:
            raise ValueError(f"--config: {path} must be a YAML file of at most {LARGEST:,} bytes, got a larger one")
        content = Path(path).read_bytes().decode()
        tree = yaml.compose(content, Loader=yaml.SafeLoader)
        _check_keys(path, tree)
        values = yaml.safe_load(content)
    except OSError as error:
        raise ValueError(f"--config: {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--config: {path} must be YAML in UTF-8, got another byte at place {error.start}") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"--config: {path} must be YAML, got {line}{error.problem}") from None
    except RecursionError:
        raise ValueError(f"--config: {path} must have sections within sections, got them nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(f"--config: {path} must be YAML, got {' '.join(str(error).split())}") from None
    except ValueError as error:
        if str(error).startswith("--config"):
            raise
        raise ValueError(f"--config: {path} holds a value that cannot be read ({error})") from None
    check(values, f"--config: {path}")
    return values


def check(values: Any, where: str) -> None:
    """See that values are plain: sections, lists, texts, numbers, truth and null, and not too many of them.

    Args:
        values: of a config, or of a part of one.
        where: they come from, for messages.

    Raises:
        ValueError: anything else, or a key with which something would be imported.
    """
    waiting, seen = [("", values, 0)], 0
    while waiting:
        key, value, depth = waiting.pop()
        seen += 1
        if seen > MOST or depth > DEEPEST:
            raise ValueError(
                f"{where} must hold at most {MOST:,} values in {DEEPEST} levels, got more under {key[:60]!r}"
            )
        if isinstance(value, dict):
            for name, inner in value.items():
                if not isinstance(name, str):
                    raise ValueError(
                        f"{where} must have names for keys, got {name!r:.60} in {key or 'its first level'}"
                    )
                if name in CALLING:
                    raise ValueError(f"{where} must name what is registered (minitx list), got {name} in {key or 'it'}")
                waiting.append((f"{key}.{name}".lstrip("."), inner, depth + 1))
        elif isinstance(value, list | tuple):
            waiting += [(key, inner, depth + 1) for inner in value]
        elif isinstance(value, set | bytes):
            raise ValueError(f"{where} must hold texts, numbers, lists and sections, got {value!r:.60} for {key}")


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
                    raise ValueError(
                        f"--config: {path} must name each key once, got {key.value!r} again in line {line}"
                    )
                names.add(str(key.value))
                waiting.append(value)
        else:
            waiting += node.value
