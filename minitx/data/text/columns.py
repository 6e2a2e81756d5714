"""Columns of text in tables: JSON, JSON Lines, CSV, TSV, Parquet and Arrow, read through `datasets`."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from minitx.config.errors import ConfigError, did_you_mean, first_line
from minitx.data.text.readers import CHUNK_BYTES, Chunk, Corpus, local_corpus
from minitx.hardware.machine import cache_folder

TABLE_ROWS = 1000  # rows of a table read at once
MAX_HEADER_BYTES = 2**16  # names of the columns of a CSV file; `datasets` takes minutes for a million columns


def read_tables(kind: str, files: list[Path], column: str, by_row: bool) -> Corpus:
    """The corpus of a column of tables in files, streamed, since `datasets` would otherwise store a copy on disk."""
    options: dict[str, Any] = {"split": "train", "streaming": True, "cache_dir": str(cache_folder() / "datasets")}
    if kind in ("csv", "tsv"):  # every value is text, also those that look like numbers or missing values
        options |= {"converters": {column: str}, "keep_default_na": False, "sep": "\t" if kind == "tsv" else ","}

    def chunks(file: Path) -> Iterator[Chunk]:
        with readable(partial(_fault, file, kind)):
            if "sep" in options:
                _check_header(file, options["sep"])
                _check_quotes(file, options["sep"])
            if kind == "parquet" and not import_module("pyarrow.parquet").read_metadata(file).num_rows:
                return  # `datasets` refuses a batch of no rows
            table = _json_table(file, column) if kind == "json" else None
            if table is None:
                table = quiet_datasets().load_dataset("csv" if kind == "tsv" else kind, data_files=str(file), **options)
                check_column(column, next(iter(table), [column]), str(file))
            yield from column_texts(table, str(file), column, by_row)

    corpus = local_corpus(files, f"{kind} {column} {by_row}", chunks, by_row, is_text=kind not in ("parquet", "arrow"))
    return corpus._replace(size=None)  # the files hold more than the column


def _json_table(file: Path, column: str) -> Any:
    """A column of one list or of JSON Lines, as a table; None for any other JSON. The library itself refuses keys and
    types that differ from those of the first 10 MB, parses some texts as dates, and drops half of a surrogate pair."""

    def rows() -> Iterator[dict[str, Any]]:
        columns: dict[str, Any] = {}
        with file.open(encoding="utf-8-sig") as lines:
            for row in parsed_json(lines.read()) if is_list else map(parsed_json, filter(str.strip, lines)):
                if is_list and isinstance(row, str):
                    row = {column: row}
                if row is not None:
                    columns = columns if column in columns else columns | row
                    yield {column: row.get(column)}
        check_column(column, columns or [column], str(file))

    with suppress(ValueError), file.open(encoding="utf-8-sig") as lines:
        is_list = _begins_list(lines)
        if not is_list:
            json.loads(next(filter(str.strip, lines), "null"))  # which may begin an object of several lines
        return quiet_datasets().IterableDataset.from_generator(rows)
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


parsed_json = partial(json.loads, object_pairs_hook=_unique, parse_constant=lambda name: None)  # NaN is a missing text


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
        names, columns = len(next(rows, [])), len(next(rows, []))
        if columns > names:
            expected = f"a name for each of its {columns} columns (or double quotes around cells with {separator!r})"
            raise ConfigError(f"data.path: the first line of {file} must be {expected}, got {names}")


def _check_quotes(file: Path, separator: str) -> None:
    """Refuse a table in which quotes of the text itself would vanish or, in a .tsv, join rows."""
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = csv.reader(lines, delimiter=separator, strict=True)
        while True:
            first = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                if "expected after" not in str(error):
                    return  # a cell of more than 128 KiB, or what pandas refuses later
                faulty = rows.line_num > 1  # text follows the closing quote; names of columns are checked later
            else:
                several = separator == "\t" and rows.line_num > first
                faulty = several and any(_joins_rows(cell, index, row) for index, cell in enumerate(row))
            if faulty:
                fault = f"lines {first:,} to {rows.line_num:,} of {file} are one row by their quotes"
                if rows.line_num == first:
                    fault = f"line {first:,} of {file} has text after a closing quote, not {separator!r}"
                advice = 'double each " of a cell that begins with ", and enclose it in "'
                raise ConfigError(f"data.path: {fault}: {advice}")


def _joins_rows(cell: str, index: int, row: list[str]) -> bool:
    """Whether a cell spans the end of a row and the start of a later one, by the tabs in its first and last line."""
    tabs = cell.partition("\n")[0].count("\t"), cell.rpartition("\n")[2].count("\t")
    return len(row) > 1 and "\n" in cell and tabs == (len(row) - 1 - index, index)


def column_texts(table: Iterable[dict[str, Any]], name: str, column: str, by_row: bool) -> Iterator[Chunk]:
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

    texts: tuple[str, ...] = ()  # its columns that may hold text, judging by one row


def check_column(column: str, row: Mapping[str, Any] | Iterable[str], name: str) -> None:
    """Refuse a table without the column; row is one of its rows, or the names of its columns."""
    if column not in row:
        error = MissingColumn(f"data.column: {name} has no column {column!r}; {did_you_mean(column, row)}")
        if isinstance(row, Mapping):
            error.texts = tuple(key for key, value in row.items() if isinstance(value, str | None))
        raise error


def _fault(file: Path, kind: str, error: Exception) -> str:
    """The message about a table that cannot be read."""
    if kind == "json" and (fault := _json_fault(file)):
        return f"data.path: {file}, {fault}; if it is plain text, rename it to end in .txt"
    return f"data.path: {file} cannot be read as {kind} ({first_line(error)})"


def _json_fault(file: Path) -> str | None:
    """The position of the first error in a file of JSON or JSON Lines."""
    number = 1
    try:
        with file.open(encoding="utf-8-sig") as stream:
            unit = "row" if (is_list := _begins_list(stream)) else "line"
            for number, row in enumerate(parsed_json(stream.read()) if is_list else stream, start=1):
                row = row if is_list else parsed_json(row.strip() or "null")
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


@contextmanager
def readable(message: Callable[[Exception], str]) -> Iterator[None]:
    """Raise any error of `datasets` as a ConfigError with this message: its readers have no common error class."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(message(error)) from None


def quiet_datasets() -> Any:
    """The library, without its progress bars, log messages and download counts."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors become ConfigErrors
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    return datasets
