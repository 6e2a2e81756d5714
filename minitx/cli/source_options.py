"""The options of registered classes, read from their source: a mistake in an open section is found without torch."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from minitx.config.errors import ConfigError, did_you_mean
from minitx.config.registry import check_options
from minitx.config.schema import Options, config_from_dict
from minitx.config.validation import shown

PACKAGE = Path(__file__).parents[1]
SOURCES = {"data": "data/tasks/*.py", "model.position": "nn/positions.py", "model.position_ids": "nn/position_ids.py"}
"""The files that register the classes of each open section."""
CONTEXT = ("self", "d_model", "n_heads", "d_head", "causal")
"""Constructor arguments that are no options."""


class Names(dict[str, Any]):
    """The names in annotations of options: builtins, a few of typing, and Any for what only the module knows."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


NAMES = Names(Options=Options, Literal=Literal, Any=Any)


def check_config(values: Mapping[str, Any]) -> None:
    """Check a whole config, its open sections included, without importing a registered class.

    Raises:
        ConfigError: with a line for each mistake.
    """
    mistakes = []
    try:
        config_from_dict(values)
    except ConfigError as error:
        mistakes.append(str(error))
    for section in SOURCES:
        options: Any = values
        for name in section.split("."):
            options = options.get(name) if isinstance(options, Mapping) else None
        if isinstance(options, Mapping) and options:
            try:
                _check_section(section, options)
            except ConfigError as error:
                mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _check_section(section: str, options: Mapping[str, Any]) -> None:
    """Check one open section; its `name` may be missing where the default names a class."""
    classes = _classes(SOURCES[section])
    registered = {name: kind for kind in classes.values() if (name := _registered_name(kind))}
    name = options.get("name")
    if name is None:
        return
    if name not in registered:
        raise ConfigError(f"{section}.name: unknown name {shown(name)}; {did_you_mean(str(name), registered)}")
    check_options(name, dict(_parameters(registered[name], classes)), dict(options), section)


@cache
def _classes(pattern: str) -> dict[str, ast.ClassDef]:
    """The classes of some files by name."""
    bodies = [ast.parse(file.read_text(encoding="utf-8")).body for file in sorted(PACKAGE.glob(pattern))]
    return {node.name: node for body in bodies for node in body if isinstance(node, ast.ClassDef)}


def _registered_name(kind: ast.ClassDef) -> str | None:
    """The name in the decorator `@register(name)`."""
    for call in kind.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "register":
            return str(ast.literal_eval(call.args[0]))
    return None


def _parameters(kind: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The options of a class and its bases: fields of a dataclass, or arguments of a constructor, as name and type."""
    constructor = next((each for each in kind.body if getattr(each, "name", "") == "__init__"), None)
    if isinstance(constructor, ast.FunctionDef):
        annotations = {argument.arg: argument.annotation for argument in constructor.args.args}
    else:
        for base in kind.bases:
            if (name := ast.unparse(base)) in classes:
                yield from _parameters(classes[name], classes)
        fields = [each for each in kind.body if isinstance(each, ast.AnnAssign)]
        annotations = {ast.unparse(field.target): field.annotation for field in fields}
    for name, annotation in annotations.items():
        text = "" if annotation is None else ast.unparse(annotation)
        if name not in CONTEXT and text and not text.startswith("ClassVar"):
            yield name, (eval(text, {}, NAMES), None)
