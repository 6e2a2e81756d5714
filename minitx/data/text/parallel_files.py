"""Pairs of sentences from files: two parallel files, or a table with a column for each language.

Lines end with \\n or \\r\\n: other line breaks occur within sentences. In .csv and .tsv a lone \\r ends a row too.
"""

import csv
import io
from pathlib import Path
from typing import Any

from minitx.config.errors import ConfigError, did_you_mean, expanded
from minitx.data.text.columns import parsed_json
from minitx.data.text.readers import where_to_find

TextPairs = list[tuple[str, str]]
"""Pairs of a source and a target sentence, stripped."""

TABLES: dict[str, dict[str, Any]] = {".csv": {"strict": True}, ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE}}
"""Options of csv.reader by suffix."""
TABLE_SUFFIXES = (*TABLES, ".jsonl")  # suffixes of files with both sides


def read(folder: str, name: str, source: str, target: str, key: str) -> TextPairs:
    """The pairs of one split, in the order of the files; a side may be empty.

    `name` is that of the files without the language (`train` for train.de and train.en), or of one table: .tsv or .csv
    with a header, .jsonl with an object for each line. A language is the suffix of its file, or the name of its column.
    `key` is the option that gave the name, data.training or --path, for messages.
    """
    root = expanded(folder, "data.path")
    suffix = Path(name).suffix.lower()
    expected = name if suffix in TABLE_SUFFIXES else f"{name}.{source} and {name}.{target}"
    if key != "--path" and not root.is_dir():
        raise ConfigError(f"data.path: there is no folder {folder}{where_to_find(root)}; give one with {expected}")
    file = root / name
    if suffix in TABLES:
        pairs = _table(file, source, target, key)
    elif suffix == ".jsonl":
        pairs = _objects(file, source, target, key)
    else:
        files = [root / f"{name}.{language}" for language in (source, target)]
        if file.is_file() and not files[0].exists():
            kinds = f"one file ({', '.join(TABLE_SUFFIXES)}) or the beginning of two ({expected})"
            raise ConfigError(f"{key} must name {kinds}, got {file}")
        sides = [_lines(file, key) for file in files]
        if len(sides[0]) != len(sides[1]):
            must = "line n of one must be the translation of line n of the other"
            one, other = (f"{file} has {len(side):,}" for file, side in zip(files, sides, strict=True))
            raise ConfigError(f"{key}: {one} lines and {other}; {must}")
        pairs = list(zip(*sides, strict=True))
    if not any(one.strip() and other.strip() for one, other in pairs):
        raise ConfigError(f"{key}: {expected} in {folder} holds no pair of sentences")
    return [(one.strip(), other.strip()) for one, other in pairs]


def _text(file: Path, key: str) -> str:
    """The content of a file, without a byte order mark."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{key}: there is no file {file}") from None
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read ({error.strerror})") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{key}: {file} is not UTF-8 text (line {line:,}); convert it first") from None


def _lines(file: Path, key: str) -> list[str]:
    lines = _text(file, key).split("\n")
    return lines[:-1] if not lines[-1] else lines  # the last line may lack its line break


def _table(file: Path, source: str, target: str, key: str) -> TextPairs:
    rows = csv.reader(io.StringIO(_text(file, key), newline=""), **TABLES[file.suffix.lower()])
    pairs = []
    try:
        columns = [column.strip() for column in next(rows, [])]
        for option, language in (("source", source), ("target", target)):
            if language not in columns:
                where = key if key == "--path" else f"data.{option}"
                raise ConfigError(f"{where}: {file} has no column {language}; {did_you_mean(language, columns)}")
        first, second = columns.index(source), columns.index(target)
        for row in rows:
            if row and len(row) != len(columns):
                raise csv.Error(f"it has {len(row)} columns instead of {len(columns)}")
            if rows.dialect.quoting == csv.QUOTE_NONE and any(map(_is_quoted, row)):
                fault = "a cell is in quotes and those in it are doubled, but in a .tsv quotes are text"
                raise csv.Error(f"{fault}; save the table as .csv")
            pairs.append((row[first], row[second]) if row else ("", ""))
    except csv.Error as error:  # a field may be too long as well
        raise ConfigError(f"{key}: line {rows.line_num:,} of {file} cannot be used: {error}") from None
    return pairs


def _is_quoted(cell: str) -> bool:
    """Whether a cell seems to have been quoted by a program, such as pandas, since its text has quotes."""
    inner = cell[1:-1]
    return cell[:1] == cell[-1:] == '"' and '""' in inner and '"' not in inner.replace('""', "")


def _objects(file: Path, source: str, target: str, key: str) -> TextPairs:
    """Two fields of the object on each line."""
    pairs = []
    for number, line in enumerate(_lines(file, key), start=1):
        try:
            entry = parsed_json(line) if line.strip() else {source: "", target: ""}
            one, other = entry[source], entry[target]
            (one + other).encode()  # half of a surrogate pair is not text
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            expected = f"is not an object with the texts {source} and {target} and each key once"
            raise ConfigError(f"{key}: line {number:,} of {file} {expected}") from None
        pairs.append((one, other))
    return pairs
