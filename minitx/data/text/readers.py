"""A corpus as chunks of text, so that none has to fit into memory, and the reader of text files.

A document is a text of its own. A chunk records whether its last document continues in the next one.
"""

import codecs
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from minitx.config.errors import ConfigError
from minitx.data.text.work_progress import progress, progress_bar

CHUNK_BYTES = 1 << 20  # bytes read at once
MAX_PIECE_CHARACTERS = 4096  # maximum number of characters handed to a tokenizer at once

_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


class Chunk(NamedTuple):
    """A part of a corpus."""

    texts: list[str]  # consecutive documents; the first may continue the last of the chunk before
    unfinished: bool  # whether the last text continues in the next chunk
    bytes: int  # read for this chunk


class Corpus(NamedTuple):
    """Text that can be read repeatedly; a ConfigError at the end of a reading if files have changed since the first."""

    key: str  # a hash of the text and its division into documents
    chunks: Callable[[], Iterator[Chunk]]  # starts a new reading
    packed: bool = False  # whether the text is divided into documents; otherwise it is one running text
    size: int | None = None  # in bytes, if it is known
    local: bool = False  # whether the key is a hash of files alone, equal wherever and whenever they are read

    def read(self, label: str, max_bytes: int | None = None) -> Iterator[Chunk]:
        """The chunks, with a progress bar of this label.

        With `max_bytes`, about so many bytes: chunks evenly spread over the text if its size is known, else the first.
        """
        chunks = progress(self.chunks(), label, lambda chunk: chunk.bytes, self.size, "B")
        if max_bytes is None or (self.size and self.size <= max_bytes):
            yield from chunks
            return
        share = max_bytes / self.size if self.size else 1.0
        taken = seen = 0
        for chunk in chunks:
            seen += chunk.bytes
            if taken >= max_bytes:
                if self.size is None:
                    return
            elif taken < seen * share:  # no break: changed files are found at the end
                taken += chunk.bytes
                yield chunk


DIVISIONS = ("whole", "file", "paragraph", "line")
"""Divisions of text files into documents, of which empty ones are skipped (data.documents); whole: one running text."""


def text_files(files: Sequence[Path], documents: str) -> Corpus:
    """Files of UTF-8 text in sequence, divided by one of DIVISIONS; every line break becomes \\n."""
    return local_corpus(files, documents, partial(_chunks, documents=documents), documents != "whole")


def local_corpus(
    files: Sequence[Path], settings: str, parts: Callable[[Path], Iterator[Chunk]], packed: bool, is_text: bool = True
) -> Corpus:
    """The corpus of files, each read by `parts`; `settings` and `is_text` as of digest."""

    def stamps() -> list[tuple[int, ...]]:
        with suppress(OSError):  # the digest names the file
            found = [file.stat() for file in files]
            return [(each.st_size, each.st_mtime_ns, each.st_ctime_ns, each.st_ino) for each in found]
        return []

    def chunks() -> Iterator[Chunk]:
        with suppress(OSError, UnicodeDecodeError):
            yield from chain.from_iterable(map(parts, files))
            if stamps() == before:
                return
        which = files[0] if len(files) == 1 else f"a file in {files[0].parent}"
        raise ConfigError(f"data.path: {which} has changed, or cannot be read to its end: start again")

    before = stamps()
    size = sum(size for size, *_ in before)
    with progress_bar("reading", size, "B") as bar:
        key = digest(files, settings, is_text, bar.update)
    return Corpus(key, chunks, packed, size, local=True)


def where_to_find(path: Path) -> str:
    """The end of a message about a missing path, if it is one of the bundled configs."""
    ours = path.parts[:2] in (("data", "shakespeare.txt"), ("data", "multi30k"))
    return " (data/README.md describes where to find it)" if ours else ""


def _chunks(file: Path, documents: str) -> Iterator[Chunk]:
    space = ""  # white space at the end of a part: the next part shows whether a paragraph ends there
    for text, size in _parts(file):
        texts = [text]
        if documents == "line":
            texts = text.split("\n")
        elif documents == "paragraph":
            body = (space + text).rstrip()
            space = (space + text)[len(body) :]
            texts = _BLANK_LINES.split(body)
        yield Chunk(texts, True, size)
    if documents != "whole":
        yield Chunk([""], False, 0)  # the end of the last document


def _parts(file: Path) -> Iterator[tuple[str, int]]:
    """The text of a file without a byte order mark, in parts that end with a line if lines are short; bytes of each."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    rest = ""
    with file.open("rb") as stream:
        while block := stream.read(CHUNK_BYTES):
            text = rest + decoder.decode(block)
            end = border(text, 0, len(text))
            rest = text[end:]
            yield text[:end], len(block)
    yield rest + decoder.decode(b"", final=True), 0


def digest(files: Sequence[Path], settings: str, is_text: bool, advance: Callable[[int], object]) -> str:
    """A hash of files, none empty and all UTF-8 if they are text, and of the settings; `advance` gets bytes read."""
    total = hashlib.sha256(settings.encode())
    for file in files:
        own, offset = hashlib.sha256(), 0
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            with file.open("rb") as stream:
                while block := stream.read(CHUNK_BYTES):
                    own.update(block)
                    if is_text:
                        decoder.decode(block)
                    offset += len(block)
                    advance(len(block))
            decoder.decode(b"", final=True)
        except OSError as error:
            raise ConfigError(f"data.path: {file} cannot be read ({error.strerror})") from None
        except UnicodeDecodeError as error:
            fault = f"not UTF-8 text (near byte {offset + error.start}); convert it"
            if not offset and block.startswith(b"\x1f\x8b"):
                fault = "compressed with gzip; decompress it"
            raise ConfigError(f"data.path: {file} is {fault} first") from None
        if offset == 0:
            raise ConfigError(f"data.path: {file} is empty")
        total.update(own.digest())
    return total.hexdigest()[:32]


def border(text: str, start: int, end: int) -> int:
    """The best index between start and end to cut a text: after a line break, before a space, or anywhere."""
    return text.rfind("\n", start, end) + 1 or max(text.rfind(" ", start + 1, end), 0) or end


def pieces(text: str) -> Iterator[str]:
    """Cut a text at borders into pieces of at most MAX_PIECE_CHARACTERS; joined, they are the text."""
    start = 0
    while len(text) - start > MAX_PIECE_CHARACTERS:
        end = border(text, start, start + MAX_PIECE_CHARACTERS)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]
