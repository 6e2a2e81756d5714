"""Values checked against annotated fields by pydantic, and its errors as sentences.

`validate` takes strict JSON: a list becomes a tuple and an integer a float, and nothing else is converted. The class of
a section, called from Python, converts as pydantic does ("128" to 128), and accepts null only if its type has None.
Every error carries its location, so a sentence is built from the field's own JSON schema, never from pydantic's text.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.fields import FieldInfo

from minitx.config.errors import ConfigError, did_you_mean

MAX_VALUES = 20_000  # in a config, each counted wherever it occurs: an alias may repeat millions
MAX_DEPTH = 20  # of sections; a config has four levels
MAX_SHOWN_LIMIT = 2**20  # a larger limit only guards against a typo, and is left out of sentences
MAX_COUNT = 2**40  # more steps than any run takes
MAX_SIZE = 2**20  # more symbols, tokens or examples than any task needs at once; a typo would fill the memory


class NullIs(NamedTuple):
    """The value that disables a key; null means the same."""

    value: Any


Integer = Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
NaturalSize = Annotated[int, Field(ge=0, le=MAX_SIZE), NullIs(0)]
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT), NullIs(0)]
Positive = Annotated[float, Field(gt=0.0, lt=3.4e38)]  # infinite in fp32 above
NonNegative = Annotated[float, Field(ge=0.0, lt=3.4e38), NullIs(0.0)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0), NullIs(0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]

Section = TypeVar("Section")

TYPES = {
    "integer": ("an integer", "integers"),
    "number": ("a number", "numbers"),
    "boolean": ("true or false", "truth values"),
    "string": ("text", "texts"),
    "null": ("null", "nulls"),
    "object": ("keys and values", "sections"),
}
"""JSON types as a user reads them: one, several."""
LIMITS = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
"""Limits of a JSON schema as a user reads them."""


def validate(kind: Any, values: Mapping[str, Any], section: str = "") -> Any:
    """Check the JSON types of a section (its dotted key is for messages), and build the dataclass or model `kind`."""
    values = _without_nulls(kind, values)
    with errors_as_sentences(kind, values, section):
        plain = json.dumps(values, default=lambda each: each.tolist() if hasattr(each, "tolist") else str(each))
        return TypeAdapter(kind).validate_json(plain, strict=True)


def _without_nulls(kind: Any, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace null by the value that disables its key, if there is one."""
    found = {**values}
    for name, field in fields_of(kind).items():
        if isinstance(value := found.get(name, ...), Mapping):
            found[name] = _without_nulls(field.annotation, value)
        elif value is None:
            found[name] = next((each.value for each in field.metadata if isinstance(each, NullIs)), None)
    return found


@contextmanager
def errors_as_sentences(kind: Any, values: Mapping[str, Any], section: str) -> Iterator[None]:
    """Turn a validation error of `values` into a ConfigError with a line for each key; see validate."""
    try:
        yield
    except ValidationError as error:
        lines: dict[str, str] = {}
        for each in error.errors(include_url=False):
            lines.setdefault(*_key_and_sentence(each, kind, values, section))
        raise ConfigError(*lines.values()) from None


@dataclass_transform(frozen_default=True)
def section(name: str) -> Callable[[type[Section]], type[Section]]:
    """Make a class a frozen, validated dataclass whose errors name keys of the section `name`. A method `_mistakes` may
    yield a sentence for each combination of values that does not fit together."""

    def __post_init__(self: Any) -> None:
        if mistakes := [*self._mistakes()]:
            raise ConfigError(*mistakes)

    def decorate(plain: type[Section]) -> type[Section]:
        if hasattr(plain, "_mistakes"):
            plain.__post_init__ = __post_init__  # type: ignore[attr-defined]
        kind: Any = pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid"))(plain)
        validated = kind.__init__

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            with errors_as_sentences(kind, kwargs, name):
                validated(self, *args, **kwargs)

        kind.__init__ = __init__
        return kind

    return decorate


def _key_and_sentence(error: Any, kind: Any, value: Any, section: str) -> tuple[str, str]:
    if error["type"] == "value_error":  # raised by a validator of minitx, with its own message
        sentence = str(error["ctx"]["error"])
        return sentence, sentence
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        key, value = ".".join((section, *error["loc"])).lstrip("."), error["input"]
        while isinstance(value, Mapping) and value:  # of an unknown section, its first key
            name, value = next(iter(value.items()))
            key = f"{key}.{name}"
        return key, _unknown_key(key, [known for known, _ in keys(kind, section)])
    key, field = section, None
    for name in error["loc"]:
        if name not in fields_of(kind):  # a member of a union, or a place in a list
            break
        key, field = f"{key}.{name}".lstrip("."), fields_of(kind)[name]
        value = value.get(name, error["input"]) if isinstance(value, Mapping) else error["input"]
        kind = field.annotation
    else:
        if error["type"] == "missing":
            return key, f"{key} is missing: expected {expected(field)}"
    words, limits = {"ge": "at least", "le": "at most", "lt": "below"}, error.get("ctx", {})
    passed = [f"{word} {limits[name]:,}" for name, word in words.items() if abs(limits.get(name, 0)) >= MAX_SHOWN_LIMIT]
    needed = expected(field)
    joined = (", " if " or " in needed else " and ").join((needed, *passed))
    return key, f"{key or 'the config'}: expected {joined}, got {shown(value)}"


def _unknown_key(key: str, known: list[str]) -> str:
    """Name an unknown dotted key and the nearest of the known ones, first among those of its own section."""
    start = key[: key.rfind(".") + 1]
    siblings = [other[len(start) :] for other in known if other[: other.rfind(".") + 1] == start]
    if not (start and siblings):  # a key without its section, or an unknown section
        hint = did_you_mean(key, known, listed=[other for other in known if "." not in other])
    elif elsewhere := [other for other in known if other.endswith(f".{key[len(start) :]}")]:
        hint = f"did you mean {' or '.join(elsewhere)}?"
    else:
        hint = did_you_mean(key[len(start) :], siblings, start)
    return f"unknown key {key if key.isprintable() else ascii(key):.100}: {hint}"


def fields_of(kind: Any) -> Mapping[str, FieldInfo]:
    """The fields of a section by name; none for any other type."""
    return getattr(kind, "__pydantic_fields__", {})


def keys(kind: Any, section: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key of a section with its field, dotted; a section within it comes before its own keys."""
    for name, field in fields_of(kind).items():
        key = f"{section}.{name}".lstrip(".")
        yield key, field
        yield from keys(field.annotation, key)


def expected(field: FieldInfo | None) -> str:
    """Describe the values that a field accepts: its type, its range, and an example if it has one."""
    if field is None:
        return "keys and values"
    annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    text = _described(TypeAdapter(annotation).json_schema())
    examples = field.examples or ([[*field.default]] if field.default and isinstance(field.default, tuple) else [])
    return f"{text}, e.g. {examples[0]}" if examples else text


def _described(schema: Mapping[str, Any]) -> str:
    """Describe the values of a JSON schema: that of `int | None` is "an integer or null"."""
    if "anyOf" in schema:
        return " or ".join(map(_described, schema["anyOf"]))
    if "enum" in schema:
        return f"one of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema:
        return repr(schema["const"])
    if schema.get("type") == "array":
        members = schema.get("prefixItems", [])
        first = (members or [schema["items"]])[0]
        if "enum" in first:
            return f"a list of {', '.join(map(repr, first['enum']))}"
        one, plural = TYPES.get(first.get("type"), ("", "values"))
        bounds = _described(first).removeprefix(one) if one else ""
        return f"a list of {f'{len(members)} ' if members else ''}{plural}{bounds}"
    one, _ = TYPES.get(schema.get("type", ""), TYPES["object"])
    limits = [(word, schema[name]) for name, word in LIMITS.items() if name in schema]
    bounds = " and ".join(f"{word} {limit:g}" for word, limit in limits if abs(limit) < MAX_SHOWN_LIMIT)
    return f"{one} {bounds}".rstrip()


def shown(value: Any) -> str:
    """Write a value as YAML would, cut to a readable length."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_plain(values: Any, source: str) -> None:
    """Check that values, which come from `source`, are plain JSON types of limited number and depth."""
    pending, count = [("", values, 0)], 0
    while pending:
        key, value, depth = pending.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            limit = f"at most {MAX_VALUES:,} values in {MAX_DEPTH} levels"
            raise ConfigError(f"{source} must hold {limit}, got more under {key[:60]!r}")
        if isinstance(value, dict):
            if strange := [name for name in value if not isinstance(name, str)]:
                place = key or "its first level"
                raise ConfigError(f"{source} must have names for keys, got {strange[0]!r:.60} in {place}")
            pending += [(f"{key}.{name}".lstrip("."), inner, depth + 1) for name, inner in value.items()]
        elif isinstance(value, list | tuple):
            pending += [(key, inner, depth + 1) for inner in value]
        elif isinstance(value, set | bytes):
            raise ConfigError(f"{source} must hold texts, numbers, lists and sections, got {value!r:.60} for {key}")
