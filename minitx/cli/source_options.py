"""The options of registered classes, read from their source: a mistake in an open section is found without torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union

from minitx.config.errors import ConfigError, did_you_mean
from minitx.config.registry import check_options
from minitx.config.schema import Options, config_from_dict
from minitx.config.validation import shown

PACKAGE = Path(__file__).parents[1]
SOURCES = {"data": "data/tasks/*.py", "model.position": "nn/positions.py", "model.position_ids": "nn/position_ids.py"}
"""The files that register the classes of each open section."""
CONTEXT = ("self", "d_model", "n_heads", "d_head", "causal")
"""Constructor arguments that are no options."""
NAMES: dict[str, Any] = {
    "Options": Options,
    "Literal": Literal,
    **{each.__name__: each for each in (int, float, str, bool, tuple, list)},
}
"""Names in annotations of options; any other, known to its module alone, is not checked."""


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
    if name is None or (name not in registered and "torch" in sys.modules):
        return  # once torch is loaded, the registry may have classes of the user's own
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
            yield name, (_type(annotation), None)


def _type(annotation: Any) -> Any:
    """The type that an annotation in source means."""
    if isinstance(annotation, ast.Name):
        return NAMES.get(annotation.id, Any)
    if isinstance(annotation, ast.Constant):  # None, a member of a Literal, or the dots of a tuple
        return annotation.value
    if isinstance(annotation, ast.BinOp):
        return Union[_type(annotation.left), _type(annotation.right)]  # noqa: UP007 (members are values)
    if isinstance(annotation, ast.Subscript) and (kind := _type(annotation.value)) is not Any:
        inner = annotation.slice
        return kind[tuple(map(_type, inner.elts)) if isinstance(inner, ast.Tuple) else _type(inner)]
    return Any
