"""A cache of trained tokenizers and encoded corpora: one flat, memory-mapped file of token ids for each corpus.

Memory holds one chunk of a corpus at a time.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib.format import open_memmap, write_array_header_1_0

from minitx.checkpoints.atomic_files import written_whole
from minitx.checkpoints.locks import locked, remove_unfinished
from minitx.config.errors import ConfigError
from minitx.config.registry import build, resolve
from minitx.config.schema import Options
from minitx.data.text.readers import Chunk, Corpus, pieces
from minitx.data.text.tokenizer_training import TOKENIZERS, lookup
from minitx.data.tokenizers import Tokenizer
from minitx.hardware.machine import cache_folder

FORMAT_VERSION = 7
"""Part of every key; increase it when the same text gives other ids or another tokenizer than before."""


def train_tokenizer(corpus: Corpus, options: Options) -> Tokenizer:
    """Train the tokenizer of data.tokenizer on a corpus, or on a sample of a large one, and cache it if bundled."""
    options = resolve(TOKENIZERS, options, "data.tokenizer")
    path = cache_folder() / f"{_key(corpus, options)}.tokenizer.json"
    is_bundled = TOKENIZERS[options["name"]].__module__.startswith("minitx.")  # others may change, or read other files
    with suppress(OSError, ValueError):  # missing, or damaged
        if is_bundled:
            return Tokenizer.from_dict(json.loads(path.read_bytes()))
    trainer = build(TOKENIZERS, options, "data.tokenizer")
    max_bytes = None if trainer.sample is None else trainer.sample * 1_000_000
    with _new_entry(path) if is_bundled else BytesIO() as file:
        tokenizer = trainer.train(chunk.texts for chunk in corpus.read("training the tokenizer", max_bytes))
        file.write(json.dumps(tokenizer.to_dict()).encode())
    return tokenizer


def encode(corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
    """All tokens of a corpus, <eos> between two documents: unsigned integers, memory-mapped, read only; cached."""
    path = cache_folder() / f"{_key(corpus, tokenizer.to_dict())}.npy"
    with suppress(OSError, ValueError, EOFError):  # missing, or damaged
        return open_memmap(path, mode="r")
    kind, count = np.min_scalar_type(max(*tokenizer.backend.get_vocab().values(), *tokenizer.special)), 0
    with _new_entry(path) as file:
        _write_header(file, kind, count)
        for part in _encoded(corpus.read("encoding"), tokenizer):
            file.write(part.astype(kind).tobytes())
            count += len(part)
        file.seek(0)
        _write_header(file, kind, count)
    return open_memmap(path, mode="r")


def unknown_extents(corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
    """Characters and bytes (UTF-8) of the text of each <unk> that encode returns, in its order: [U, 2]; cached."""
    path = cache_folder() / f"{_key(corpus, tokenizer.to_dict())}.unknown.npy"
    with suppress(OSError, ValueError, EOFError):  # missing, or damaged
        return open_memmap(path, mode="r")
    found: list[tuple[int, int]] = []
    for texts, _, continued in _documents(corpus.read("reading unknown tokens")):
        parts = [*chain.from_iterable(_cut(texts, continued, tokenizer))]
        for some, own in _continued_first(parts, continued, tokenizer):
            for part, encoding in zip(some, own.backend.encode_batch(some, add_special_tokens=False), strict=True):
                for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                    if token == tokenizer.special.unk:
                        found.append((end - start, len(part[start:end].encode())))
    extents = np.array(found, np.int64).reshape(-1, 2)
    with _new_entry(path) as file:
        np.save(file, extents)
    return extents


def _write_header(file: IO[bytes], kind: np.dtype, count: int) -> None:
    """The header of NumPy's format, of the same length for any count."""
    write_array_header_1_0(file, {"descr": kind.str, "fortran_order": False, "shape": (count,)})


@contextmanager
def _new_entry(path: Path) -> Iterator[IO[bytes]]:
    """written_whole for a file of the cache, without the unfinished files of killed processes.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(BlockingIOError), locked(path.parent) as alone:  # otherwise another process is writing
            if alone:
                remove_unfinished(path.parent)
        with locked(path.parent, shared=True), written_whole(path) as file:
            yield file
    except OSError as error:
        advice = "set the environment variable MINITX_CACHE to another folder"
        raise ConfigError(f"the cache folder {path.parent} cannot be written ({error.strerror}): {advice}") from None


def _key(corpus: Corpus, settings: dict) -> str:
    """The name of a cache file: a hash of the text, and of the options or the tokenizer."""
    content = f"{FORMAT_VERSION} {corpus.key} {json.dumps(settings, sort_keys=True)}"
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _documents(chunks: Iterator[Chunk]) -> Iterator[tuple[list[str], list[int], bool]]:
    """The texts of each chunk, which of them begin another document, and whether the first continues the text before.

    Empty texts are left out.
    """
    started = inside = False  # whether any document has started, and whether the latest one may continue
    for chunk in chunks:
        texts: list[str] = []
        borders: list[int] = []
        continued = False
        for number, text in enumerate(chunk.texts, start=1):
            if text:
                continued |= inside and not texts
                if started and not inside:
                    borders.append(len(texts))
                texts.append(text)
                started = inside = True
            inside = inside and chunk.unfinished and number == len(chunk.texts)
        yield texts, borders, continued


def _encoded(chunks: Iterator[Chunk], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    table = lookup(tokenizer)
    for texts, borders, continued in _documents(chunks):
        ids, counts = table(texts) if table is not None else _encoded_texts(texts, continued, tokenizer)
        if borders and tokenizer.special.eos < 0:
            raise ConfigError("data.documents must be whole: the tokenizer has no <eos> to separate documents")
        before = np.concatenate(([0], counts.cumsum()))  # [texts + 1], tokens before each text
        yield np.insert(ids, before[borders], tokenizer.special.eos) if borders else ids


def _encoded_texts(texts: Sequence[str], continued: bool, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """The concatenated ids of texts, and the number of ids of each text."""
    cut = _cut(texts, continued, tokenizer)
    parts = _continued_first([*chain.from_iterable(cut)], continued, tokenizer)
    encoded = chain.from_iterable(own.encode_batch(some) for some, own in parts)
    ids = [[*chain.from_iterable(islice(encoded, len(parts)))] for parts in cut]
    counts = np.array([*map(len, ids)], dtype=np.int64)
    return np.fromiter(chain.from_iterable(ids), np.uint32, int(counts.sum())), counts


def _cut(texts: Sequence[str], continued: bool, tokenizer: Tokenizer) -> list[list[str]]:
    """The pieces of each text that are tokenized separately."""
    if not tokenizer.imported:
        return [[*pieces(text)] for text in texts]
    cut = [[text] for text in texts]  # an imported tokenizer may add a space before each piece (SentencePiece)
    if continued:
        end = _next_space(texts[0], tokenizer)
        cut[0] = [texts[0][:end], texts[0][end:]]
    return cut


def _next_space(text: str, tokenizer: Tokenizer) -> int:
    """The index at which an imported tokenizer adds its next space to a text that continues another."""
    own, continuing = tokenizer.encode, tokenizer.continuing.encode
    if continuing("a a") == 2 * continuing("a"):  # T5: before every word, since text is cut at white space first
        return 0
    tokens = tokenizer.backend.get_added_tokens_decoder().values()
    special = [token.content for token in tokens if not token.lstrip]  # which takes the white space before it
    if not special or own(f"{special[0]}a") == continuing(f"{special[0]}a"):  # Llama puts one after each of them
        return len(text)
    return min((start for start in map(text.find, special) if start >= 0), default=len(text))


def _continued_first(
    parts: list[str], continued: bool, tokenizer: Tokenizer
) -> tuple[tuple[list[str], Tokenizer], tuple[list[str], Tokenizer]]:
    """Pieces of text with their tokenizers: for the first one, if it continues a text, that of continuing text."""
    return (parts[:continued], tokenizer.continuing), (parts[continued:], tokenizer)
