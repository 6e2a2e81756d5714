"""Pairs of sentences from files: two side by side, or one with a column for each language. Tokenises nothing.

Lines end with \\n or \\r\\n and nowhere else: other characters that break a line on paper stand within sentences.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from minitx.config.errors import ConfigError

Sentences = list[tuple[str, str]]
"""Pairs of a source and a target sentence, without white space around them."""

SEPARATORS = {".csv": ",", ".tsv": "\t"}
WHOLE = (*SEPARATORS, ".jsonl")
"""Endings of files that have both sides."""


def read(folder: str, name: str, source: str, target: str, key: str) -> Sentences:
    """The pairs of one split, in the order of the files; a side may be empty.

    Args:
        folder: where the files are.
        name: the files' name before the language (`train` for train.de and train.en), or one whole file: .tsv or .csv
            whose first line names the columns, .jsonl with an object a line.
        source: the language that is read: the ending of its file, or the name of its column.
        target: the language that is written, likewise.
        key: the option that gave the name, for messages.

    Raises:
        ConfigError: a file that is not there or not UTF-8, files of different lengths, no such column, no pair at all.
    """
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise ConfigError(
            f"data.path: there is no folder {folder}; give one that holds {_wanted(name, source, target)}"
        )
    file = place / name
    if file.suffix in SEPARATORS:
        pairs = _table(file, source, target, key)
    elif file.suffix == ".jsonl":
        pairs = _objects(file, source, target, key)
    else:
        files = [place / f"{name}.{language}" for language in (source, target)]
        sides = [_lines(file, key) for file in files]
        if len(sides[0]) != len(sides[1]):
            raise ConfigError(
                f"data.{key}: {files[0]} has {len(sides[0]):,} lines and {files[1]} has {len(sides[1]):,}; "
                "line n of one must be the translation of line n of the other"
            )
        pairs = list(zip(*sides, strict=True))
    if not any(one.strip() and other.strip() for one, other in pairs):
        raise ConfigError(f"data.{key}: {_wanted(name, source, target)} in {folder} holds no pair of sentences")
    return [(one.strip(), other.strip()) for one, other in pairs]


def _wanted(name: str, source: str, target: str) -> str:
    return name if Path(name).suffix in WHOLE else f"{name}.{source} and {name}.{target}"


def _text(file: Path, key: str) -> str:
    """A whole file, its byte order mark taken off."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"data.{key}: there is no file {file}") from None
    except OSError as error:
        raise ConfigError(f"data.{key}: {file} cannot be read ({error.strerror})") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"data.{key}: {file} is not UTF-8 text (line {line:,}); convert it first") from None


def _lines(file: Path, key: str) -> list[str]:
    lines = _text(file, key).split("\n")
    return lines[:-1] if not lines[-1] else lines  # the last line may or may not have its end


def _table(file: Path, source: str, target: str, key: str) -> Sentences:
    """The two columns of a table; sentences in a .tsv are never quoted."""
    text, separator = io.StringIO(_text(file, key), newline=""), SEPARATORS[file.suffix]
    if separator == "\t":
        rows = csv.reader(text, delimiter=separator, quoting=csv.QUOTE_NONE)
    else:
        rows = csv.reader(text, delimiter=separator)
    columns = [column.strip() for column in next(rows, [])]
    for option, language in (("source", source), ("target", target)):
        if language not in columns:
            raise ConfigError(f"data.{option}: {file} has no column {language}, only {', '.join(columns)}")
    first, second = columns.index(source), columns.index(target)
    pairs = []
    for row in rows:
        if row and len(row) != len(columns):
            raise ConfigError(
                f"data.{key}: line {rows.line_num:,} of {file} has {len(row)} columns instead of {len(columns)}"
            )
        pairs.append((row[first], row[second]) if row else ("", ""))
    return pairs


def _objects(file: Path, source: str, target: str, key: str) -> Sentences:
    """The two fields of each line's object."""
    pairs = []
    for number, line in enumerate(_lines(file, key), start=1):
        try:
            entry = json.loads(line) if line.strip() else {source: "", target: ""}
        except json.JSONDecodeError:
            entry = None
        if not isinstance(entry, dict) or not all(isinstance(entry.get(side), str) for side in (source, target)):
            raise ConfigError(
                f"data.{key}: line {number:,} of {file} is not an object with the texts {source} and {target}"
            )
        pairs.append((entry[source], entry[target]))
    return pairs
