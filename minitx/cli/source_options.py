"""The options of registered classes, read from their source: open sections are checked without importing torch."""

import ast
import sys
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, get_type_hints

import annotated_types

from minitx.config import schema, validation
from minitx.config.errors import ConfigError, UnknownName, all_results
from minitx.config.registry import resolve

PACKAGE = Path(__file__).parents[1]
SOURCES = {
    "data": "data/tasks/*.py",
    "model.position": "nn/*positions.py",
    "model.window_position": "nn/*positions.py",
    "model.position_ids": "nn/position_ids.py",
}
"""The files that register the classes of each open section."""
NON_OPTIONS = ("self", "d_model", "n_heads", "d_head", "causal")  # constructor arguments that are no options


def check_config(values: Mapping[str, Any]) -> schema.Config:
    """Check a whole config, its open sections included, without importing a registered class."""
    opened = (partial(_check_section, section, values) for section in SOURCES)
    return all_results(partial(schema.config_from_dict, values), *opened)[0]


def _check_section(section: str, values: Any) -> None:
    """Check one open section of a config; its `name` may be missing if the default names a class."""
    given = schema.open_section(values, section)
    if given.get("name") is None:
        return
    options = registered_options(SOURCES[section])
    # Files to import may register more names; once torch is loaded, the registry may have them already.
    if str(given["name"]) in options or not (values.get("imports") or "torch" in sys.modules):
        try:
            resolve(options, given, section)
        except UnknownName as error:
            advice = "" if str(error).endswith("?") else "; one of your own needs --import FILE"
            raise ConfigError(f"{error}{advice}") from None


@cache
def registered_options(pattern: str) -> dict[str, dict[str, tuple[Any, Any]]]:
    """The options of every class that some files register: type and, if a tuple of constants, default by name."""
    bodies = [ast.parse(file.read_text(encoding="utf-8")).body for file in sorted(PACKAGE.glob(pattern))]
    classes = {node.name: node for body in bodies for node in body if isinstance(node, ast.ClassDef)}
    return {
        ast.literal_eval(call.args[0]): _options(kind, classes)
        for kind in classes.values()
        for call in kind.decorator_list
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "register"
    }


def _options(kind: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> dict[str, tuple[Any, Any]]:
    """The options of a class: arguments of its constructor, or fields of a dataclass and its bases."""
    found: dict[str, tuple[Any, Any]] = {}
    constructor = next((each for each in kind.body if getattr(each, "name", "") == "__init__"), None)
    annotations: dict[str, tuple[ast.expr | None, ast.expr | None]]
    if isinstance(constructor, ast.FunctionDef):
        annotations = {argument.arg: (argument.annotation, None) for argument in constructor.args.args}
    else:
        for base in map(ast.unparse, kind.bases):
            found |= _options(classes[base], classes) if base in classes else {}
        annotations = {
            ast.unparse(each.target): (each.annotation, each.value)
            for each in kind.body
            if isinstance(each, ast.AnnAssign)
        }
    for name, (annotation, value) in annotations.items():
        if name not in NON_OPTIONS and annotation and not ast.unparse(annotation).startswith("ClassVar"):
            # A tuple of constants is an example for messages.
            plain = isinstance(value, ast.Tuple) and all(isinstance(part, ast.Constant) for part in value.elts)
            found[name] = (_type(ast.unparse(annotation)), ast.literal_eval(value) if value and plain else None)
    return found


def _type(annotation: str) -> Any:
    """The type that an annotation means; Any, which is not checked, for a name defined in its module only."""
    option = type("Option", (), {"__annotations__": {"type": annotation}})
    try:
        names = {**vars(annotated_types), **vars(validation), **vars(schema)}
        return get_type_hints(option, names, include_extras=True)["type"]
    except NameError:
        return Any
