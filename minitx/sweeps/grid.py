"""Which settings a sweep goes through: `--set key=a,b` to every combination of them. Text only, no torch."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence

from minitx.config.errors import ConfigError

Settings = dict[str, str]
"""One point of the grid: a value, as written, for each key."""

RESERVED = {
    "run.seed": "--seeds N trains with the seeds 1 to N",
    "run.name": "a sweep names its runs itself",
    "run.folder": "a sweep lays out its folder itself",
    "config": "the files are the same for all runs",
}
LONGEST = 100  # characters of a folder's name before it is cut


def parse(texts: Sequence[str]) -> dict[str, list[str]]:
    """The values of each key in ["key=a,b", ...], in the order in which they were written.

    Commas within brackets or quotes do not part values: `data.length=[1,8],[1,16]` has two.

    Raises:
        ConfigError: no key, no value, a key or a value twice, a key that a sweep sets itself.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        key, separator, written = text.partition("=")
        key, values = key.strip().removeprefix("--"), split(written)
        if not (key and separator and all(values)):
            raise ConfigError(f"--set must be KEY=VALUE,VALUE,... with a value between commas, got {text!r}")
        if key in RESERVED:
            raise ConfigError(f"--set {key}: {RESERVED[key]}")
        if key in found:
            raise ConfigError(f"--set {key} is given twice; write all its values into one")
        if len(set(values)) < len(values):
            raise ConfigError(f"--set {key} names a value twice: {written}")
        found[key] = values
    return found


def split(text: str) -> list[str]:
    """The parts of a text between commas that stand in no bracket and no quotes, without the spaces around them."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += sign
    return [part.strip() for part in parts]


def combinations(values: Mapping[str, Sequence[str]]) -> list[Settings]:
    """Every combination of one value for each key, the last key changing fastest; one empty one without any key."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def described(settings: Settings) -> str:
    """Settings as people read them."""
    return ", ".join(f"{key} {value}" for key, value in settings.items()) or "the config as it is"


def slug(settings: Settings) -> str:
    """A folder's name for settings; different settings have different ones."""
    text = "__".join(f"{key}={value}" for key, value in settings.items()) or "all"
    safe = re.sub(r"[^\w.=+-]+", "-", text)
    if safe == text and len(safe) <= LONGEST:
        return safe
    return f"{safe[:LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
