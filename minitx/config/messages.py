"""What jsonargparse complains about, as one sentence with the key, what was expected and what came."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser, set_parsing_settings

# What is written is never imported and never called, on the command line as little as in a file.
set_parsing_settings(
    docstring_parse_attribute_docstrings=True, import_path_denylist=["*"], instantiate_subclass_spec_in_any=False
)


def keys(parser: ArgumentParser) -> list[str]:
    """Every key that a parser knows, dotted."""
    return [
        option.removeprefix("--")
        for action in parser._actions
        for option in action.option_strings
        if option not in ("-h", "--help")
    ]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the nearest known ones, or all when none is near."""
    known = sorted(known)
    if not known:
        return "it has none"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}"


def explain(message: str, known: list[str]) -> str:
    """Turn what jsonargparse says into a sentence with the key, what was expected and what came."""
    if unknown := re.search(r"(?:unrecognized arguments: --|Option ')([\w.]+)", message):
        return unknown_key(unknown[1], known)
    if unknown := re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'", message):
        return unknown_key(f"{unknown[1]}.{unknown[2]}", known)
    if wrong := re.search(r'Parser key "([\w.]+)":\s*(.*)', message, re.DOTALL):
        key, reason = wrong[1], " ".join(wrong[2].split())
        if value := re.match(r"Expected an? (.+?)\. Got value: (.*)", reason):
            return f"{key}: expected {kinds(value[1])}, got {value[2]!r}"
        if value := re.search(r"Union subtypes Subtypes: \[(.*)\] Errors: .* Given value: (.*)", reason):
            return f"{key}: expected {kinds(value[1])}, got {value[2]!r}"
        return f"{key}: {reason}"
    return " ".join(message.split())


def kinds(types: str) -> str:
    """Types as Python writes them, one or several, in words."""
    words = []
    for kind, choices, other in re.findall(
        r"<class '(?:\w+\.)*(\w+)'>|typing\.Literal\[(.*?)\]|((?:\w+\.)*\w+\[[^\]]*\])", types
    ):
        many = f"one of {choices}" if "," in choices else choices
        words.append("null" if kind == "NoneType" else kind or many or other)
    return " or ".join(words) or types


def unknown_key(key: str, known: list[str]) -> str:
    """The sentence about a key that nobody knows: nearest among its siblings first."""
    group = key.rpartition(".")[0]
    siblings = [name for name in known if name.rpartition(".")[0] == group] or known
    return f"unknown key {key}: {did_you_mean(key, siblings)}"


def check_none(kind: Any, values: Mapping[str, Any], section: str) -> None:
    """Refuse null where there must be a value: jsonargparse lets it pass anywhere.

    Args:
        kind: the class or dataclass whose arguments they are.
        values: by name.
        section: their dotted key, for messages.

    Raises:
        ValueError: with the key.
    """
    if not (empty := [name for name, value in values.items() if value is None]):
        return
    hints = get_type_hints(kind if dataclasses.is_dataclass(kind) else kind.__init__)
    for name in empty:
        if type(None) not in get_args(hints[name]):
            several = get_origin(hints[name]) in (Union, UnionType)
            expected = kinds(", ".join(map(repr, get_args(hints[name]) if several else [hints[name]])))
            raise ValueError(f"{section}.{name}: expected {expected}, got null")
