"""The settings of a sweep: `--set key=a,b` and `--set key=1e-4..1e-2`. Text only, no torch."""

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from minitx.config import yaml_files
from minitx.config.errors import ConfigError

Settings = dict[str, str]  # one point of the grid: the text of a value for each key

RESERVED = {
    "run": "a sweep sets the name, the folder and the seed of its runs itself",
    "run.seed": "--seeds N trains with the seeds 1 to N",
    "run.name": "a sweep names its runs itself",
    "run.folder": "a sweep chooses the folders of its runs itself",
    "config": "the files are the same for all runs",
}
MAX_FOLDER_BYTES = 100  # longer names are cut and end in a hash
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


class Range(NamedTuple):
    """Numbers from low to high, both included: integers if both are, on a logarithmic scale if they span a decade."""

    low: str
    high: str


Space = Mapping[str, list[str] | Range]


def parse(texts: Sequence[str]) -> dict[str, list[str] | Range]:
    """Parse ["key=a,b", "key=1..8", ...] into the values or the range of each key, in the given order.

    Commas within brackets or quotes do not separate values: `data.length=[1,8],[1,16]` has two.
    """
    grid: dict[str, list[str] | Range] = {}
    for text in texts:
        key, separator, listed = text.partition("=")
        key, values = key.strip().removeprefix("--"), split(listed)
        if not (key and separator and all(values)):
            raise ConfigError(f"--set must be KEY=VALUE,VALUE,... with a value between commas, got {text!r}")
        if key in RESERVED:
            raise ConfigError(f"--set {key}: {RESERVED[key]}")
        if key in grid:
            raise ConfigError(f"--set {key} is given twice; list all its values in one --set")
        read = [yaml_files.value_of(key, value) for value in values]
        if any(value in read[:number] for number, value in enumerate(read)):
            raise ConfigError(f"--set {key} repeats a value: {listed}")
        ends = re.fullmatch(rf"({NUMBER})\.\.({NUMBER})", listed.strip())
        if ends and not float(ends[1]) < float(ends[2]):
            raise ConfigError(f"--set {key} must be LOW..HIGH with LOW < HIGH, got {listed}")
        grid[key] = Range(ends[1], ends[2]) if ends else values
    return grid


def split(text: str) -> list[str]:
    """Split a text at its commas outside brackets and quotes; surrounding spaces are removed."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and not parts[-1][-1:].isalnum():  # an apostrophe opens no quotes
            quote = character
        elif character == "," and depth == 0:
            parts.append("")
            continue
        else:
            depth += (character in "([{") - (character in ")]}")
        parts[-1] += character
    return [part.strip() for part in parts]


def combinations(grid: Space) -> list[Settings]:
    """Every combination of one value per key, the last key changing fastest; one empty combination without keys."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def every_value(grid: Space) -> list[Settings]:
    """Combinations that have every value and every end of a range at least once."""
    return [
        {key: values[min(index, len(values) - 1)] for key, values in grid.items()}
        for index in range(max(map(len, grid.values())))
    ]


def described(settings: Mapping[str, str | float]) -> str:
    """Settings, or the parameters of a trial, as text for a message."""
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in settings.items()}
    return ", ".join(f"{key} {value}" for key, value in shown.items()) or "the config unchanged"


def slug(settings: Settings) -> str:
    """The folder name of settings, different for different settings."""
    text = "__".join(f"{key}={value}" for key, value in settings.items()) or "all"
    safe = re.sub(r"[^\w.=+-]+", "-", text)
    if safe == text and len(safe.encode()) <= MAX_FOLDER_BYTES:
        return safe
    return f"{safe.encode()[:MAX_FOLDER_BYTES].decode(errors='ignore')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
