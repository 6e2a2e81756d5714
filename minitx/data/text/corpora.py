"""Sources of text by data.path: text files, tables, the Python standard library, the hub.

Text files are read by readers.py; tables (JSON, CSV, Parquet) on disk or on the hub through `datasets`. To add a
corpus, register a function that returns its files; its name is then a data.path.
"""

import csv
import hashlib
import io
import json
import re
import socket
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from minitx.config.errors import ConfigError, did_you_mean, expanded, first_line
from minitx.config.registry import LazyRegistry
from minitx.data.text.readers import CHUNK_BYTES, DIVISIONS, Chunk, Corpus, local_corpus, text_files, where_to_find
from minitx.hardware.machine import cache_folder

KINDS = {
    ".txt": "text", ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
"""Kinds of files by suffix; a file with any other suffix is text if data.path names it."""
NO_TABLES = re.compile(r"dataset_(info|infos|dict)\.json|state\.json|cache-[0-9a-f]{16}.*\.arrow")
"""Files of `datasets` beside Arrow and Parquet tables: their descriptions, and its results of map and filter."""
NO_HUB_SUFFIXES = {*KINDS, ".text", ".md", ".py"}
"""Suffixes of local files: owner/name.txt is a missing file, not a data set on the hub."""
TABLE_ROWS = 1000  # rows of a table read at once
MAX_HEADER_BYTES = 2**16  # names of the columns of a CSV file; `datasets` takes minutes for a million columns

CORPORA = LazyRegistry()  # functions by their names for data.path
register = CORPORA.register
"""Decorator that makes a function that returns text files available as data.path."""


@register("python_code")
def python_code() -> list[Path]:
    """The source of the Python standard library without its tests: real text without a download.

    ASCII files only, so that a character model has about a hundred tokens instead of thousands that occur once; in the
    order of a hash of their names, so that the held-out end of the text is like the rest.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    unwanted = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3", "pydoc_data"}
    files = [path for path in root.rglob("*.py") if not unwanted & set(path.relative_to(root).parts)]
    ascii_only = [path for path in files if path.read_bytes().isascii() and path.stat().st_size]
    return sorted(ascii_only, key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())


def load(
    path: str, column: str = "text", documents: str = "auto", subset: str | None = None, streaming: bool = False
) -> Corpus:
    """The corpus of a data.path: a name in CORPORA, a file, a folder of files of one kind, or owner/name on the hub.

    The other arguments are options of the task `text`.
    """
    found = ("text", CORPORA[path]()) if path in CORPORA else _on_disk(path)
    if found is None:
        if re.fullmatch(r"[\w-]+/[\w.-]+", path) and Path(path).suffix not in NO_HUB_SUFFIXES:
            return _from_hub(path, subset, column, _by_row(documents), streaming)
        known = "a file of text, JSON, CSV or Parquet, a folder of them, owner/name on the hub"
        others = f"or one of {', '.join(sorted(CORPORA))}; a corpus of your own needs --import FILE"
        raise ConfigError(f"data.path: there is no file {path}{where_to_find(Path(path))}; give {known}, {others}")
    kind, files = found
    if kind != "text":
        return _tables(kind, files, column, _by_row(documents))
    if documents == "row":
        raise ConfigError(f"data.documents: row is for tables; a text file has {', '.join(DIVISIONS)}")
    return text_files(files, "whole" if documents == "auto" else documents)


def is_text(path: str) -> bool:
    """Whether a data.path is text files; otherwise it is a table, on disk or on the hub."""
    return path in CORPORA or (_on_disk(path) or ("hub",))[0] == "text"


def _by_row(documents: str) -> bool:
    if documents not in ("auto", "row", "whole"):
        raise ConfigError(f"data.documents: {documents} is for text files; a table has row or whole")
    return documents != "whole"


def _on_disk(path: str) -> tuple[str, list[Path]] | None:
    """The kind of a file, or of all files in a folder but hidden ones, which macOS adds, and these sorted by path."""
    if not path:
        raise ConfigError("data.path is empty: give a text file or one of " + ", ".join(sorted(CORPORA)))
    file = expanded(path, "data.path")
    try:
        if not file.is_dir():
            return (KINDS.get(file.suffix.lower(), "text"), [file]) if file.is_file() else None
        any(file.iterdir())  # a folder without permission, which rglob skips
        files = sorted(inner for inner in file.rglob("[!.]*") if inner.suffix.lower() in KINDS and inner.is_file())
        if any(inner.suffix.lower() in (".arrow", ".parquet") for inner in files):
            is_dict = any(inner.name == "dataset_dict.json" for inner in files)
            files = [inner for inner in files if not NO_TABLES.fullmatch(inner.name)]
            if is_dict and len(splits := sorted({inner.parent.name for inner in files})) > 1:
                folders = f"give the folder of one ({', '.join(splits)})"
                raise ConfigError(f"data.path: {file} has several splits: {folders}")
    except OSError as error:  # a name that is too long, a folder without permission
        raise ConfigError(f"data.path: {path[:200]} cannot be read ({error.strerror})") from None
    if not files:
        raise ConfigError(f"data.path: the folder {file} holds no .txt file, nor any {', '.join([*KINDS][1:])}")
    kinds = {KINDS[inner.suffix.lower()] for inner in files}
    if len(kinds) > 1:
        found = ", ".join(f"{count} {suffix}" for suffix, count in Counter(inner.suffix for inner in files).items())
        raise ConfigError(f"data.path: the folder {file} holds files of several kinds ({found}); keep those of one")
    return kinds.pop(), files


def _tables(kind: str, files: list[Path], column: str, by_row: bool) -> Corpus:
    """A column of tables in files, streamed, since `datasets` would otherwise store a copy on disk."""
    options: dict[str, Any] = {"split": "train", "streaming": True, "cache_dir": str(cache_folder() / "datasets")}
    if kind in ("csv", "tsv"):  # every value is text, also those that look like numbers or missing values
        options |= {"converters": {column: str}, "keep_default_na": False, "sep": "\t" if kind == "tsv" else ","}

    def chunks(file: Path) -> Iterator[Chunk]:
        with _readable(partial(_fault, file, kind)):
            if "sep" in options:
                _check_header(file, options["sep"])
            if kind == "tsv":
                _check_quotes(file)
            if kind == "parquet" and not import_module("pyarrow.parquet").read_metadata(file).num_rows:
                return  # `datasets` refuses a batch of no rows
            table = _json_table(file, column) if kind == "json" else None
            if table is None:
                table = _datasets().load_dataset("csv" if kind == "tsv" else kind, data_files=str(file), **options)
                _check_column(column, next(iter(table), [column]), str(file))
            yield from _rows(table, str(file), column, by_row)

    corpus = local_corpus(files, f"{kind} {column} {by_row}", chunks, by_row, is_text=kind not in ("parquet", "arrow"))
    return corpus._replace(size=None)  # the files hold more than the column


def _json_table(file: Path, column: str) -> Any:
    """A column of one list or of JSON Lines, as a table; None for any other JSON. The library itself refuses keys and
    types that differ from those of the first 10 MB, takes some texts for dates, and drops half of a surrogate pair."""

    def rows() -> Iterator[dict[str, Any]]:
        columns: dict[str, Any] = {}
        with file.open(encoding="utf-8-sig") as lines:
            for row in _parsed(lines.read()) if is_list else map(_parsed, filter(str.strip, lines)):
                if is_list and isinstance(row, str):
                    row = {column: row}
                if row is not None:
                    columns = columns if column in columns else columns | row
                    yield {column: row.get(column)}
        _check_column(column, columns or [column], str(file))

    with suppress(ValueError), file.open(encoding="utf-8-sig") as lines:
        is_list = _begins_list(lines)
        if not is_list:
            json.loads(next(filter(str.strip, lines), "null"))  # which may begin an object of several lines
        return _datasets().IterableDataset.from_generator(rows)
    return None


def _begins_list(file: IO[str]) -> bool:
    """Whether a file of JSON begins with a list; it is then read from its start."""
    begins = file.read(CHUNK_BYTES).lstrip().startswith("[")
    file.seek(0)
    return begins


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its keys and values; a JSONDecodeError for a repeated key, of which Python keeps the last."""
    if len(found := dict(pairs)) < len(pairs):
        raise json.JSONDecodeError("a key is specified twice", "", 0)
    return found


_parsed = partial(json.loads, object_pairs_hook=_unique, parse_constant=lambda name: None)  # NaN is a missing text


def _check_header(file: Path, separator: str) -> None:
    """Refuse a header that takes long to parse or has fewer names than columns: pandas would shift the columns."""
    with file.open("rb") as stream:
        if len(stream.readline(MAX_HEADER_BYTES + 1)) > MAX_HEADER_BYTES:
            expected = f"the names of its columns in at most {MAX_HEADER_BYTES:,} bytes"
            raise ConfigError(f"data.path: the first line of {file} must be {expected}, got a longer one")
        stream.seek(0)
        start = stream.read(CHUNK_BYTES).decode("utf-8", "ignore")
    with suppress(csv.Error):  # a cell of more than 128 KiB
        rows = (row for row in csv.reader(io.StringIO(start, newline=""), delimiter=separator) if row)
        names, first = len(next(rows, [])), len(next(rows, []))
        if first > names:
            expected = f"a name for each of its {first} columns (or double quotes around cells with {separator!r})"
            raise ConfigError(f"data.path: the first line of {file} must be {expected}, got {names}")


def _check_quotes(file: Path) -> None:
    """Refuse a .tsv in which quotes of the text itself, at the start of cells, would vanish or join rows."""
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = csv.reader(lines, delimiter="\t", strict=True)
        while True:
            first = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                if "expected after" not in str(error):  # a cell of more than 128 KiB, or what pandas refuses as well
                    return
                faulty = True  # text follows the closing quote
            else:
                faulty = rows.line_num > first and any(_joins_rows(cell, index, row) for index, cell in enumerate(row))
            if faulty:
                fault = f"lines {first:,} to {rows.line_num:,} of {file} are one row by their quotes"
                if rows.line_num == first:
                    fault = f"line {first:,} of {file} has text after a closing quote"
                advice = 'double each " of a cell that begins with ", and enclose it in "'
                raise ConfigError(f"data.path: {fault}: {advice}")


def _joins_rows(cell: str, index: int, row: list[str]) -> bool:
    """Whether a cell spans the end of a row and the start of a later one, by the tabs in its first and last line."""
    tabs = cell.partition("\n")[0].count("\t"), cell.rpartition("\n")[2].count("\t")
    return len(row) > 1 and "\n" in cell and tabs == (len(row) - 1 - index, index)


def _from_hub(name: str, subset: str | None, column: str, by_row: bool, streaming: bool) -> Corpus:
    """A column of a data set on the hub, stored on disk by `datasets` or streamed."""
    missing = f"data.path: {name} is neither a local file nor could it be loaded from the hub"
    datasets, size = _datasets(), None
    unknown = unknown_host(datasets.config.HF_ENDPOINT)

    def reason(error: Exception) -> str:
        return unknown if unknown and isinstance(error, ConnectionError) else first_line(error, with_class=True)

    with _readable(lambda error: f"{missing} ({reason(error)})"), ExitStack() as stack:
        if unknown:  # `datasets` would try for half a minute before it reads its cache
            stack.callback(setattr, datasets.config, "HF_HUB_OFFLINE", datasets.config.HF_HUB_OFFLINE)
            datasets.config.HF_HUB_OFFLINE = True
        if streaming:
            builder = datasets.load_dataset_builder(name, subset)
            version = f"{name} {builder.config_id} {builder.hash}"  # the hash is the commit
            table = builder.as_streaming_dataset(split="train")
        else:
            table = datasets.load_dataset(name, subset, split="train")
            read = table.select_columns([column]) if column in table.column_names else table
            version, size = table._fingerprint, read.data.nbytes

    def chunks() -> Iterator[Chunk]:
        with _readable(lambda error: f"data.path: reading {name} failed ({first_line(error, with_class=True)})"):
            _check_column(column, next(iter(table), [column]), name)
            yield from _rows(table, name, column, by_row)

    key = hashlib.sha256(f"{version} {column} {by_row}".encode()).hexdigest()[:32]
    return Corpus(key, chunks, by_row, size)


def unknown_host(address: str) -> str:
    """Why an address cannot be reached: its host name does not resolve, and no proxy is set. Empty if it may be."""
    host = urlsplit(address).hostname
    try:
        if not getproxies():
            socket.getaddrinfo(host, None)
    except OSError:
        return f"there is no connection to {host}: its name cannot be resolved"
    return ""


@contextmanager
def _readable(message: Callable[[Exception], str]) -> Iterator[None]:
    """Raise any error of `datasets` as a ConfigError with this message: its readers have no common error class."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(message(error)) from None


def _rows(table: Iterable[dict[str, Any]], name: str, column: str, by_row: bool) -> Iterator[Chunk]:
    """The texts in a column of a `datasets` table; by row without those that are empty or white space alone."""
    for rows in table.select_columns([column]).iter(batch_size=TABLE_ROWS):  # type: ignore[attr-defined]
        texts = [text for text in rows[column] if text is not None]
        if others := {type(text).__name__ for text in texts if not isinstance(text, str)}:
            found = ", ".join(sorted(others))
            raise ConfigError(f"data.column: in {name} the column {column!r} holds {found}, not text")
        texts = [text for text in texts if text.strip() or not by_row]
        size = sum(len(text.encode()) for text in texts)
        yield Chunk(texts, False, size) if by_row else Chunk(["".join(texts)], True, size)


class MissingColumn(ConfigError):
    """A table lacks the column data.column."""

    texts: tuple[str, ...] = ()  # those of its columns that may hold text, by one row


def _check_column(column: str, row: Mapping[str, Any] | Iterable[str], name: str) -> None:
    if column not in row:
        error = MissingColumn(f"data.column: {name} has no column {column!r}; {did_you_mean(column, row)}")
        if isinstance(row, Mapping):
            error.texts = tuple(key for key, value in row.items() if isinstance(value, str | None))
        raise error


def _fault(file: Path, kind: str, error: Exception) -> str:
    """The message about a table that cannot be read."""
    if kind == "json" and (fault := _json_fault(file)):
        return f"data.path: {file}, {fault}; if it is plain text, let its name end in .txt"
    return f"data.path: {file} cannot be read as {kind} ({first_line(error)})"


def _json_fault(file: Path) -> str | None:
    """The position of the first error in a file of JSON or JSON Lines."""
    number = 1
    try:
        with file.open(encoding="utf-8-sig") as stream:
            unit = "row" if (is_list := _begins_list(stream)) else "line"
            for number, row in enumerate(_parsed(stream.read()) if is_list else stream, start=1):
                row = row if is_list else _parsed(row.strip() or "null")
                if not isinstance(row, dict | None) and not (is_list and isinstance(row, str)):
                    return f"{unit} {number}, is not an object with a column for each key"
                json.dumps(row, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        if is_list and not error.doc:  # raised by _unique, without a line
            return "in which one object has a key twice, is not JSON"
        return f"line {number + error.lineno - 1}, is not JSON ({error.msg})"
    except UnicodeEncodeError:
        return f"{unit} {number}, has half of a surrogate pair, which is not text"
    except RecursionError:
        return "which should be JSON, is nested too deeply"
    return None


def _datasets() -> Any:
    """The library, without its progress bars, log messages and download counts."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are reported by this module
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    return datasets
