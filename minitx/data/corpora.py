"""Text from files, from the machine's own Python or from the hub, as rows of a `datasets` table. Tokenises nothing.

To add a corpus, register a function that returns its files; its name is then a data.path.
"""

from __future__ import annotations

import codecs
import hashlib
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from minitx.data.encoded import cache_folder

if TYPE_CHECKING:
    from datasets import Dataset

CORPORA: dict[str, Callable[[], list[Path]]] = {}
"""Corpora by the name that data.path may give instead of a file."""

Files = Callable[[], list[Path]]


def register(name: str) -> Callable[[Files], Files]:
    """Make a function that returns text files available as data.path."""

    def add(files: Files) -> Files:
        CORPORA[name] = files
        return files

    return add


@register("python_code")
def python_code() -> list[Path]:
    """The Python standard library's own source, without its tests: real text on every machine, no download.

    Only files in ASCII, so that a character model has some hundred tokens and not thousands that occur once; in the
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


def load(path: str) -> Dataset:
    """The text behind a data.path, one line a row (column `text`, with its line break, which is always \\n).

    Args:
        path: a name in CORPORA, a text file in UTF-8, a folder of .txt files, or a data set on the hub (owner/name).

    Raises:
        ValueError: nothing there, or nothing that is text.
    """
    if not path:
        raise ValueError("data.path is empty: give a text file or one of " + ", ".join(sorted(CORPORA)))
    if path in CORPORA:
        files = CORPORA[path]()
    else:
        place = Path(path).expanduser()
        if place.is_dir():
            files = sorted(place.glob("**/*.txt"))
            if not files:
                raise ValueError(f"data.path: the folder {path} holds no .txt file")
        elif place.exists():
            files = [place]
        elif re.fullmatch(r"[\w-]+/[\w.-]+", path) and not re.search(r"\.(txt|text|md|py)$", path):
            return _from_hub(path)
        else:
            raise ValueError(
                f"data.path: there is no file {path}; give a text file, a folder of .txt files, "
                f"owner/name on the hub, or one of {', '.join(sorted(CORPORA))}"
            )
    digest = hashlib.sha256()
    for file in files:
        _check_text(file, digest)
    return _from_files(files, digest.hexdigest()[:32])


def _from_files(files: list[Path], digest: str) -> Dataset:
    """The lines of files. `datasets` would know them again by path and time; the digest knows them by content."""
    import datasets

    datasets.disable_progress_bars()
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # a file here is nobody else's business
    names = [str(file) for file in files]
    folder = str(cache_folder() / "datasets" / digest)
    table = datasets.load_dataset("text", data_files=names, split="train", keep_linebreaks=True, cache_dir=folder)
    table._fingerprint = digest
    return table


def _from_hub(name: str) -> Dataset:
    import datasets

    try:
        table = datasets.load_dataset(name, split="train")
    except Exception as error:  # the library's errors for "not there" and "not reachable" have no common class
        raise ValueError(
            f"data.path: {name} is neither a file here nor could it be loaded from the hub ({type(error).__name__})"
        ) from None
    if "text" not in table.column_names:
        raise ValueError(f"data.path: {name} has no column `text`, only {', '.join(table.column_names)}")
    return table.select_columns("text")


def _check_text(file: Path, digest: hashlib._Hash) -> None:
    """Refuse what is not UTF-8 text before anything is built from it; the digest reads along."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
                decoder.decode(chunk)
                offset += len(chunk)
            decoder.decode(b"", final=True)
    except OSError as error:
        raise ValueError(f"data.path: {file} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"data.path: {file} is not UTF-8 text (near byte {offset + error.start}); convert it first"
        ) from None
    if offset == 0:
        raise ValueError(f"data.path: {file} is empty")
