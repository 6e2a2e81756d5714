"""Sources of text by data.path: text files, tables, the Python standard library, the hub.

Text files are read by readers.py, tables on disk and on the hub by columns.py. To add a corpus, register a function
that returns (or yields) paths of text files; its name is then a data.path.
"""

import hashlib
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from minitx.config.errors import ConfigError, expanded, first_line
from minitx.config.registry import LazyRegistry
from minitx.data.text.columns import check_column, column_texts, quiet_datasets, read_tables, readable
from minitx.data.text.readers import DIVISIONS, Chunk, Corpus, text_files, where_to_find
from minitx.hardware.machine import unknown_host

KINDS = {
    ".txt": "text", ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
"""Kinds of files by suffix; a file with any other suffix is text if data.path names it."""
NO_TABLES = re.compile(r"dataset_(info|infos|dict)\.json|state\.json|cache-[0-9a-f]{16}.*\.arrow")
"""Files of `datasets` beside Arrow and Parquet tables: their descriptions, and its results of map and filter."""
NO_HUB_SUFFIXES = {*KINDS, ".text", ".md", ".py"}
"""Suffixes of local files: owner/name.txt is a missing file, not a data set on the hub."""

CORPORA = LazyRegistry()  # functions by their names for data.path
register = CORPORA.register
"""Decorator that makes a function that returns paths of text files available as data.path."""


@register("python_code")
def python_code() -> list[Path]:
    """The source of the Python standard library without its tests: real text, no download needed.

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
    found = ("text", [*map(Path, CORPORA[path]())]) if path in CORPORA else _on_disk(path)
    if found is None:
        if re.fullmatch(r"[\w-]+/[\w.-]+", path) and Path(path).suffix not in NO_HUB_SUFFIXES:
            return _from_hub(path, subset, column, _by_row(documents), streaming)
        known = "a file of text, JSON, CSV or Parquet, a folder of them, owner/name on the hub"
        others = f"or one of {', '.join(sorted(CORPORA))}; a corpus of your own needs --import FILE"
        raise ConfigError(f"data.path: there is no file {path}{where_to_find(Path(path))}; give {known}, {others}")
    kind, files = found
    if kind != "text":
        return read_tables(kind, files, column, _by_row(documents))
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
    """The kind of a file, or of all files in a folder, sorted by path, but hidden ones, which macOS and Jupyter add."""
    if not path:
        raise ConfigError("data.path is empty: give a text file or one of " + ", ".join(sorted(CORPORA)))
    file = expanded(path, "data.path")
    try:
        if not file.is_dir():
            return (KINDS.get(file.suffix.lower(), "text"), [file]) if file.is_file() else None
        any(file.iterdir())  # a folder without permission, which rglob skips
        files = sorted(inner for inner in file.rglob("*") if inner.suffix.lower() in KINDS)
        files = [inner for inner in files if inner.is_file() or (inner.is_symlink() and not inner.exists())]
        files = [inner for inner in files if not re.search(r"(^|[/\\])\.", str(inner.relative_to(file)))]
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


def _from_hub(name: str, subset: str | None, column: str, by_row: bool, streaming: bool) -> Corpus:
    """A column of a data set on the hub, stored on disk by `datasets` or streamed."""
    missing = f"data.path: {name} is neither a local file nor could it be loaded from the hub"
    datasets, size = quiet_datasets(), None
    unknown = unknown_host(datasets.config.HF_ENDPOINT)

    def reason(error: Exception) -> str:
        return unknown if unknown and isinstance(error, ConnectionError) else first_line(error, with_class=True)

    with readable(lambda error: f"{missing} ({reason(error)})"), ExitStack() as stack:
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
        with readable(lambda error: f"data.path: reading {name} failed ({first_line(error, with_class=True)})"):
            check_column(column, next(iter(table), [column]), name)
            yield from column_texts(table, name, column, by_row)

    key = hashlib.sha256(f"{version} {column} {by_row}".encode()).hexdigest()[:32]
    return Corpus(key, chunks, by_row, size)
