"""The grid of a sweep: `--set key=a,b` to every combination of values. Text only, no torch."""

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence

from minitx.config.errors import ConfigError

Settings = dict[str, str]  # one point of the grid: the text of a value for each key

RESERVED = {
    "run.seed": "--seeds N trains with the seeds 1 to N",
    "run.name": "a sweep names its runs itself",
    "run.folder": "a sweep chooses the folders of its runs itself",
    "config": "the files are the same for all runs",
}
MAX_FOLDER_CHARACTERS = 100  # longer names are cut and completed by a hash


def parse(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parse ["key=a,b", ...] into the values of each key, in the given order.

    Commas within brackets or quotes do not separate values: `data.length=[1,8],[1,16]` has two.
    """
    grid: dict[str, list[str]] = {}
    for text in texts:
        key, separator, listed = text.partition("=")
        key, values = key.strip().removeprefix("--"), split(listed)
        if not (key and separator and all(values)):
            raise ConfigError(f"--set must be KEY=VALUE,VALUE,... with a value between commas, got {text!r}")
        if key in RESERVED:
            raise ConfigError(f"--set {key}: {RESERVED[key]}")
        if key in grid:
            raise ConfigError(f"--set {key} is given twice; list all its values in one --set")
        if len(set(values)) < len(values):
            raise ConfigError(f"--set {key} repeats a value: {listed}")
        grid[key] = values
    return grid


def split(text: str) -> list[str]:
    """Split a text at its commas outside brackets and quotes; surrounding spaces are removed."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "," and depth == 0:
            parts.append("")
            continue
        else:
            depth += (character in "([{") - (character in ")]}")
        parts[-1] += character
    return [part.strip() for part in parts]


def combinations(grid: Mapping[str, Sequence[str]]) -> list[Settings]:
    """Every combination of one value per key, the last key changing fastest; one empty combination without keys."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def described(settings: Settings) -> str:
    """Settings in a message."""
    return ", ".join(f"{key} {value}" for key, value in settings.items()) or "the config unchanged"


def slug(settings: Settings) -> str:
    """The folder name of settings, different for different settings."""
    text = "__".join(f"{key}={value}" for key, value in settings.items()) or "all"
    safe = re.sub(r"[^\w.=+-]+", "-", text)
    if safe == text and len(safe) <= MAX_FOLDER_CHARACTERS:
        return safe
    return f"{safe[:MAX_FOLDER_CHARACTERS]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
