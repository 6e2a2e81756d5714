"""Sources of text by data.path: text files, tables, the Python standard library, the hub.

Text files are read by readers.py; tables (JSON, CSV, Parquet) on disk or on the hub through `datasets`. To add a
corpus, register a function that returns its files; its name is then a data.path.
"""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from minitx.config.errors import ConfigError, did_you_mean
from minitx.data.text.readers import CHUNK_BYTES, DIVISIONS, Chunk, Corpus, digest, text_files
from minitx.data.text.token_cache import cache_folder

KINDS = {
    ".txt": "text",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
"""Kinds of files by suffix; a file with any other suffix is text if data.path names it."""
TABLE_ROWS = 1000
"""Rows of a table read at once."""

CORPORA: dict[str, Callable[[], list[Path]]] = {}
"""Registered corpora: names for data.path."""

Files = Callable[[], list[Path]]


def register(name: str) -> Callable[[Files], Files]:
    """Decorator that makes a function that returns text files available as data.path."""

    def add(files: Files) -> Files:
        CORPORA[name] = files
        return files

    return add


@register("python_code")
def python_code() -> list[Path]:
    """The source of the Python standard library without its tests: real text without a download.

    ASCII files only, so that a character model has about a hundred tokens instead of thousands that occur once; in the
    order of a hash of their names, so that the held-out end of the text is like the rest.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    unwanted = {
        "test",
        "tests",
        "idle_test",
        "site-packages",
        "dist-packages",
        "__pycache__",
        "lib2to3",
        "pydoc_data",
    }
    files = [path for path in root.rglob("*.py") if not unwanted & set(path.relative_to(root).parts)]
    ascii_only = [path for path in files if path.read_bytes().isascii() and path.stat().st_size]
    return sorted(ascii_only, key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())


def load(
    path: str, column: str = "text", documents: str = "auto", subset: str | None = None, streaming: bool = False
) -> Corpus:
    """The corpus of a data.path.

    Args:
        path: a name in CORPORA, a file, a folder of files of one kind, or a data set on the hub (owner/name).
        column: of a table, with the text.
        documents: the division into documents: `row` for a table, a name in DIVISIONS for text files, `whole` for none;
            `auto` is `row` for a table and `whole` for text files.
        subset: of a data set on the hub, where it has several.
        streaming: stream a data set of the hub instead of storing a copy on disk.

    Raises:
        ConfigError: no file, no text, or an unsupported division.
    """
    if not path:
        raise ConfigError("data.path is empty: give a text file or one of " + ", ".join(sorted(CORPORA)))
    kind = "text"
    if path in CORPORA:
        files = CORPORA[path]()
    else:
        file = Path(path).expanduser()
        try:
            found = _in_folder(file) if file.is_dir() else None
            exists = file.exists()
        except OSError as error:  # a name that is too long, a folder without permission
            raise ConfigError(f"data.path: {path[:200]} cannot be read ({error.strerror})") from None
        if found is not None:
            kind, files = found
        elif exists:
            kind, files = KINDS.get(file.suffix.lower(), "text"), [file]
        elif re.fullmatch(r"[\w-]+/[\w.-]+", path) and Path(path).suffix not in {*KINDS, ".text", ".md", ".py"}:
            return _from_hub(path, subset, column, _by_row(documents), streaming)
        else:
            raise ConfigError(
                f"data.path: there is no file {path}; give a file of text, JSON, CSV or Parquet, a folder of them, "
                f"owner/name on the hub, or one of {', '.join(sorted(CORPORA))}"
            )
    if kind != "text":
        return _tables(kind, files, column, _by_row(documents))
    if documents == "row":
        raise ConfigError(f"data.documents: row is for tables; a text file has {', '.join(DIVISIONS)}")
    return text_files(files, "whole" if documents == "auto" else documents)


def _by_row(documents: str) -> bool:
    """Whether each row of a table is a document."""
    if documents not in ("auto", "row", "whole"):
        raise ConfigError(f"data.documents: {documents} is for text files; a table has row or whole")
    return documents != "whole"


def _in_folder(folder: Path) -> tuple[str, list[Path]]:
    """The kind of a folder's files, and these files sorted by path."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in KINDS and path.is_file())
    if not files:
        raise ConfigError(f"data.path: the folder {folder} holds no .txt file, nor any {', '.join([*KINDS][1:])}")
    kinds = {KINDS[path.suffix.lower()] for path in files}
    if len(kinds) > 1:
        found = ", ".join(f"{count} {suffix}" for suffix, count in Counter(path.suffix for path in files).items())
        raise ConfigError(f"data.path: the folder {folder} holds files of several kinds ({found}); keep those of one")
    return kinds.pop(), files


def _tables(kind: str, files: list[Path], column: str, by_row: bool) -> Corpus:
    """A column of tables in files, streamed, since `datasets` would otherwise store a copy on disk."""
    key = digest(files, f"{kind} {column} {by_row}", check=False)

    def chunks() -> Iterator[Chunk]:
        datasets = _datasets()
        options: dict[str, Any] = {"split": "train", "streaming": True, "cache_dir": str(cache_folder() / "datasets")}
        if kind in ("csv", "tsv"):  # every value is text, also those that look like numbers or missing values
            options |= {"converters": {column: str}, "keep_default_na": False, "sep": "\t" if kind == "tsv" else ","}
        loader = "csv" if kind == "tsv" else kind
        for file in files:
            try:
                table = datasets.load_dataset(loader, data_files={"train": [str(file)]}, **options)
                yield from _rows(table, str(file), column, by_row)
            except _TableError as error:
                raise ConfigError(str(error)) from None
            except Exception as error:  # the readers of datasets have no common error class
                raise ConfigError(_fault(file, kind, error)) from None

    size = None if kind == "parquet" else sum(file.stat().st_size for file in files)  # Parquet is compressed
    return Corpus(key, chunks, by_row, size)


class _TableError(Exception):
    """A readable table without the requested text; its message is complete."""


def _rows(table: Iterable[dict[str, Any]], name: str, column: str, by_row: bool) -> Iterator[Chunk]:
    """The texts in a column of a `datasets` table; empty ones are skipped."""
    columns = list(next(iter(table), {column: None}))
    if column not in columns:
        raise _TableError(f"data.column: {name} has no column {column!r}; {did_you_mean(column, columns)}")
    for rows in table.select_columns([column]).iter(batch_size=TABLE_ROWS):  # type: ignore[attr-defined]
        texts = [text for text in rows[column] if text is not None]
        if others := {type(text).__name__ for text in texts if not isinstance(text, str)}:
            raise _TableError(
                f"data.column: in {name} the column {column!r} holds {', '.join(sorted(others))}, not text"
            )
        texts = [text for text in texts if text.strip()]
        size = sum(map(len, texts))
        yield Chunk(texts, False, size) if by_row else Chunk(["".join(texts)], True, size)


def _fault(file: Path, kind: str, error: Exception) -> str:
    """The message about a table that cannot be read."""
    if isinstance(error, UnicodeDecodeError):
        return f"data.path: {file} is not UTF-8 text; convert it first"
    if kind == "json" and (fault := _json_fault(file)):
        return f"data.path: {file}, {fault}; if it is plain text, let its name end in .txt"
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return f"data.path: {file} cannot be read as {kind} ({reason})"


def _json_fault(file: Path) -> str | None:
    """The position of the first error in a file of JSON or JSON Lines."""
    try:
        with file.open(encoding="utf-8-sig") as stream:
            if stream.read(CHUNK_BYTES).lstrip().startswith("["):
                stream.seek(0)
                json.load(stream)
                return None
            stream.seek(0)
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    return f"line {number}, is not JSON ({error.msg})"
                if not isinstance(row, dict):
                    return f"line {number}, is not an object with a column for each key"
    except json.JSONDecodeError as error:
        return f"line {error.lineno}, is not JSON ({error.msg})"
    except UnicodeDecodeError:
        return "which should be JSON, is not UTF-8 text"
    except RecursionError:
        return "which should be JSON, is nested too deeply"
    return None


def _from_hub(name: str, subset: str | None, column: str, by_row: bool, streaming: bool) -> Corpus:
    """A column of a data set on the hub, stored on disk by `datasets` or streamed."""
    datasets = _datasets()
    size = None
    try:
        if streaming:
            builder = datasets.load_dataset_builder(name, subset)
            version = f"{name} {builder.config_id} {builder.hash}"  # the hash is the commit
            table = builder.as_streaming_dataset(split="train")
        else:
            table = datasets.load_dataset(name, subset, split="train")
            version, size = table._fingerprint, table.data.nbytes
    except Exception as error:  # the library's errors for missing and unreachable data sets have no common class
        reason = next(iter(str(error).strip().splitlines()), "")
        raise ConfigError(
            f"data.path: {name} is neither a local file nor could it be loaded from the hub "
            f"({type(error).__name__}: {reason})"
        ) from None

    def chunks() -> Iterator[Chunk]:
        try:
            yield from _rows(table, name, column, by_row)
        except _TableError as error:
            raise ConfigError(str(error)) from None
        except Exception as error:
            raise ConfigError(f"data.path: reading {name} broke off ({type(error).__name__}: {error})") from None

    key = hashlib.sha256(f"{version} {column} {by_row}".encode()).hexdigest()[:32]
    return Corpus(key, chunks, by_row, size)


def _datasets() -> Any:
    """The library, without its progress bars, log messages and download counts."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are reported by this module
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    return datasets
