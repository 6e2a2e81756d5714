"""A corpus as chunks of text, so that none needs to fit into memory; and text files as one. Knows no tables, no tokens.

A document is text that belongs together; where it begins and ends, a chunk tells. One that is longer than a chunk goes
on in the next.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from minitx.config.errors import ConfigError
from minitx.data.characters import border
from minitx.data.text.work_progress import told

CHUNK = 1 << 20
"""Bytes that are read at once."""

_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


class Chunk(NamedTuple):
    """A part of a corpus."""

    texts: list[str]  # one after the other, each its own document; the first may go on with the chunk before
    unfinished: bool  # whether the last text goes on in the next chunk
    bytes: int  # how much was read for it


@dataclass(frozen=True)
class Corpus:
    """Text that can be read again and again.

    Args:
        key: tells this text, with its division into documents, from any other.
        chunks: begins to read.
        packed: whether it is divided into documents; otherwise it is one running text.
        size: bytes that there are to read, where that is known.
    """

    key: str
    chunks: Callable[[], Iterator[Chunk]]
    packed: bool = False
    size: int | None = None

    def read(self, what: str, most: int | None = None) -> Iterator[Chunk]:
        """The chunks, with a line on stderr when this takes long.

        Args:
            what: is being done with them, for that line.
            most: bytes, at most and but for one chunk: evenly spread over the text where its size is known, else the
                first ones.
        """
        if most is None:
            yield from told(self.chunks(), what, lambda chunk: chunk.bytes, self.size)
            return
        share = min(1.0, most / self.size) if self.size else 1.0
        taken = 0
        for number, chunk in enumerate(told(self.chunks(), what, lambda chunk: chunk.bytes, self.size)):
            if taken >= most:
                return
            if int((number + 1) * share) > int(number * share):
                taken += chunk.bytes
                yield chunk


def text_files(files: Sequence[Path], documents: str) -> Corpus:
    """Files of text in UTF-8 one after the other; every line break becomes \\n.

    Args:
        files: in their order.
        documents: a name in DIVISIONS.

    Raises:
        ConfigError: a file that is empty, unreadable or not UTF-8.
    """
    divide = DIVISIONS[documents]

    def chunks() -> Iterator[Chunk]:
        for file in files:
            yield from divide(_parts(file))

    key = digest(files, documents, check=True)
    return Corpus(key, chunks, documents != "whole", sum(file.stat().st_size for file in files))


def digest(files: Sequence[Path], settings: str, check: bool) -> str:
    """A key of the content of files and of how they are read.

    Args:
        files: in their order.
        settings: whatever else makes a difference.
        check: whether to refuse what is not UTF-8.

    Raises:
        ConfigError: a file that is empty, unreadable, or not UTF-8 if that is checked.
    """
    total = hashlib.sha256(settings.encode())
    for file in files:
        own, offset = hashlib.sha256(), 0
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            size = file.stat().st_size
            with file.open("rb") as stream:
                for part in told(iter(partial(stream.read, CHUNK), b""), f"reading {file}", len, size):
                    own.update(part)
                    if check:
                        decoder.decode(part)
                    offset += len(part)
            decoder.decode(b"", final=True)
        except OSError as error:
            raise ConfigError(f"data.path: {file} cannot be read ({error.strerror})") from None
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"data.path: {file} is not UTF-8 text (near byte {offset + error.start}); convert it first"
            ) from None
        if offset == 0:
            raise ConfigError(f"data.path: {file} is empty")
        total.update(own.digest())
    return total.hexdigest()[:32]


def _parts(file: Path) -> Iterator[tuple[str, int]]:
    """The text of a file in parts that end with a line where lines are not too long, and the bytes read for each."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    rest = ""
    with file.open("rb") as stream:
        while part := stream.read(CHUNK):
            text = rest + decoder.decode(part)
            end = border(text, 0, len(text))
            rest = text[end:]
            yield text[:end], len(part)
    yield rest + decoder.decode(b"", final=True), 0


def _whole(parts: Iterator[tuple[str, int]]) -> Iterator[Chunk]:
    for text, size in parts:
        yield Chunk([text], True, size)


def _files(parts: Iterator[tuple[str, int]]) -> Iterator[Chunk]:
    yield from _whole(parts)
    yield Chunk([""], False, 0)


def _lines(parts: Iterator[tuple[str, int]]) -> Iterator[Chunk]:
    for text, size in parts:
        yield Chunk(text.split("\n"), True, size)
    yield Chunk([""], False, 0)


def _paragraphs(parts: Iterator[tuple[str, int]]) -> Iterator[Chunk]:
    space = ""  # at the end of a part: what follows decides whether it parts or belongs to a paragraph
    for text, size in parts:
        text = space + text
        body = text.rstrip()
        space = text[len(body) :]
        yield Chunk(_BLANK_LINES.split(body), True, size)
    yield Chunk([""], False, 0)


DIVISIONS: dict[str, Callable[[Iterator[tuple[str, int]]], Iterator[Chunk]]] = {
    "whole": _whole,
    "file": _files,
    "paragraph": _paragraphs,
    "line": _lines,
}
"""What is a document in text files, by data.documents; an empty one is none. `whole`: all is one running text."""
