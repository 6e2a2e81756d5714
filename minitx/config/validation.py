"""Values checked against annotated fields by pydantic, and its errors as sentences.

Values are validated as strict JSON: a list becomes a tuple and an integer a float, and nothing else is converted.
Every error carries its location, so a sentence is built from the field's own annotation, never from pydantic's text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from minitx.config.errors import ConfigError, unknown_key

T = TypeVar("T")

MISSING = object()

WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text", NoneType: "null"}
"""Types as a user reads them."""
PLURALS = {int: "integers", float: "numbers", bool: "truth values", str: "texts"}


def validate(
    adapter: TypeAdapter[T], values: Mapping[str, Any], fields: Mapping[str, FieldInfo], section: str = ""
) -> T:
    """Check plain values and build the object they describe.

    Args:
        adapter: of the type to build.
        values: JSON types by name.
        fields: the fields of that type by name.
        section: dotted key of the values, for messages.

    Raises:
        ConfigError: with a line for each mistake.
    """
    try:
        return adapter.validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError("\n".join(sentences(error, values, fields, section))) from None


def sentences(
    error: ValidationError, values: Mapping[str, Any], fields: Mapping[str, FieldInfo], section: str = ""
) -> list[str]:
    """List the mistakes in a validation error of `values`, one sentence for each key."""
    found: dict[str, str] = {}
    for each in error.errors(include_url=False):
        path, field = _locate(each["loc"], fields)
        key, value = ".".join((section, *path) if section else path), _value(values, path)
        if each["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            key = _first_leaf(key, value)
            sentence = unknown_key(key, (".".join((section, name)).lstrip(".") for name in _names(fields)))
        elif each["type"] == "value_error":  # raised by a validator of ours, in its own words
            sentence = str(each["ctx"]["error"])
        elif value is MISSING:
            sentence = f"{key} is missing: expected {expected(field)}"
        else:
            limits = [(word, each.get("ctx", {}).get(name)) for name, word in (("le", "at most"), ("lt", "below"))]
            exceeded = [f"{word} {_number(limit)}" for word, limit in limits if limit is not None and limit >= 2**30]
            wanted = exceeded[0] if exceeded else expected(field)
            sentence = f"{key or 'the config'}: expected {wanted}, got {shown(value)}"
        found.setdefault(sentence if each["type"] == "value_error" else key, sentence)
    return list(found.values())


def expected(field: FieldInfo | None) -> str:
    """Describe the values that a field takes: its type, its range, and an example where it has one."""
    if field is None:
        return "keys and values"
    text = described(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)
    return f"{text}, e.g. {field.examples[0]}" if field.examples else text


def described(annotation: Any) -> str:
    """Describe the values of an annotation: `int | None` is "an integer or null"."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return described(inner[0]) + _bounds(inner[1:])
    if origin in (Union, UnionType):
        return " or ".join(described(each) for each in inner)
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}" if len(inner) > 1 else repr(inner[0])
    if origin in (tuple, list):
        kind = get_args(inner[0])[0] if get_origin(inner[0]) is Annotated else inner[0]
        length = f"{len(inner)} " if origin is tuple and Ellipsis not in inner else ""
        return f"a list of {length}{PLURALS.get(kind, 'values')}"
    if annotation in WORDS:
        return WORDS[annotation]
    return "keys and values"


def shown(value: Any) -> str:
    """Write a value as YAML would, cut to a readable length."""
    text = json.dumps(value, default=str) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _bounds(constraints: Iterable[Any]) -> str:
    """Describe the range that constraints of annotated_types or pydantic's Field leave."""
    words = []
    for constraint in constraints:
        for each in constraint.metadata if isinstance(constraint, FieldInfo) else (constraint,):
            for kind, name, word in (
                (Ge, "ge", "of at least"),
                (Gt, "gt", "above"),
                (Le, "le", "at most"),
                (Lt, "lt", "below"),
            ):
                # A bound that only guards against a slip of the keyboard is noise in a sentence about something else.
                if isinstance(each, kind) and (word in ("of at least", "above") or getattr(each, name) < 2**30):
                    words.append(f"{word} {_number(getattr(each, name))}")
    return f" {' and '.join(words)}" if words else ""


def _number(value: float) -> str:
    """Write a bound; a large power of two as one."""
    size = int(value).bit_length() - 1 if value == int(value) else 0
    return f"2^{size}" if size > 20 and value == 2**size else f"{value:g}"


def _locate(
    location: tuple[int | str, ...], fields: Mapping[str, FieldInfo]
) -> tuple[tuple[str, ...], FieldInfo | None]:
    """Follow a location through sections: the path of the key, and its field unless the key is unknown."""
    path: list[str] = []
    field: FieldInfo | None = None
    for part in map(str, location):
        if part not in fields:
            # After a field without sections: a member of its union or a place in its list. Else an unknown key.
            return (tuple(path), field) if field is not None and not fields else ((*path, part), None)
        path.append(part)
        field = fields[part]
        fields = getattr(field.annotation, "__pydantic_fields__", {})
    return tuple(path), field


def _names(fields: Mapping[str, FieldInfo], within: str = "") -> Iterator[str]:
    """Every key, dotted, and every section."""
    for name, field in fields.items():
        yield f"{within}{name}"
        yield from _names(getattr(field.annotation, "__pydantic_fields__", {}), f"{within}{name}.")


def _value(values: Any, path: Iterable[str]) -> Any:
    """Follow a path through plain values; MISSING where it ends early."""
    for name in path:
        values = values.get(name, MISSING) if isinstance(values, Mapping) else MISSING
    return values


def _first_leaf(key: str, value: Any) -> str:
    """Extend an unknown section's key to the first key within it."""
    while isinstance(value, Mapping) and value:
        name, value = next(iter(value.items()))
        key = f"{key}.{name}"
    return key
