"""Sources of text files (corpora.py), and the cache of their ids (token_cache.py)."""

import errno
import fcntl
import os
import socket
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from minitx.config.errors import ConfigError
from minitx.data.text import corpora, token_cache
from minitx.data.text.readers import Chunk, Corpus
from minitx.data.text.tokenizer_training import ByteTokenizer, CharTokenizer
from minitx.data.tokenizers import SPECIAL_TOKENS, symbols


def file(folder: Path, content: str | bytes) -> str:
    path = folder / "text.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize(("content", "reason"), [
    (b"", "is empty"),
    (b"\x1f\x8b\x08", "is compressed with gzip; decompress it first"),
    (b"good until here \x80 and after", r"is not UTF-8 text \(near byte 16\)"),
    (b"x" * 100_000 + b"\xc3", "is not UTF-8"),  # cut in the middle of a character, at the very end
    ("é".encode() * 700_000 + b"\xff rest", r"near byte 1400000\)"),  # beyond the first block that is checked
])  # fmt: skip
def test_what_is_not_text_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.path: .*text\.txt.*{reason}"):
        corpora.load(file(tmp_path, content))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "closed").mkdir()
    (tmp_path / "folder" / "picture.png").write_bytes(b"\x89PNG")
    file(tmp_path, "text\n")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    monkeypatch.chdir(tmp_path)
    forbidden = PermissionError(13, "Permission denied")  # file modes do not hold for root, who runs many a CI
    refuse, entries = Mock(side_effect=forbidden), Path.iterdir
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "iterdir", lambda path: refuse() if path.name == "closed" else entries(path))
    missing = ("no/such/folder/x.txt", "owner/file.txt", "nonsense", "loop.txt", "pipe.txt", "/dev/zero", "\0")
    for wrong, reason in (
        ("", "is empty"),
        ("folder", r"no \.txt file"),
        ("text.txt", r"cannot be read \(Permission denied\)"),
        (".", r"loop\.txt cannot be read"),
        ("closed", r"closed cannot be read \(Permission denied\)"),
        ("x" * 5000, r"cannot be read \(File name too long\)"),
        *((path, rf"there is no file {path}; .*python_code.* own needs --import FILE") for path in missing),
    ):
        with pytest.raises(ValueError, match=rf"data\.path.*{reason}"):
            corpora.load(wrong)


def test_a_local_file_is_read_without_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that is not reached: test_columns.py."""
    asked = Mock(side_effect=OSError)
    monkeypatch.setattr(socket, "getaddrinfo", asked)
    monkeypatch.setattr(socket.socket, "connect", asked)
    assert [*corpora.load(file(tmp_path, "text")).chunks()]
    asked.assert_not_called()


def test_the_standard_library_is_ascii_files_in_a_stable_order() -> None:
    files = corpora.python_code()
    assert corpora.python_code() == files != sorted(files)
    assert len(files) > 100
    assert not any({"tests", "test", "site-packages"} & set(path.parts) for path in files)
    assert all(path.read_bytes().isascii() and path.stat().st_size > 0 for path in files[::20])


@pytest.mark.parametrize(("size", "kind"), [(2**8, np.uint8), (2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_the_largest_id_of_a_vocabulary_is_stored_exactly(caches: Path, size: int, kind: type) -> None:
    tokenizer = symbols([str(number) for number in range(size - len(SPECIAL_TOKENS))])
    texts = [tokenizer.alphabet[-1], tokenizer.alphabet[0]]
    ids = token_cache.encode(Corpus("key", lambda: iter([Chunk(texts, False, 1)]), packed=True), tokenizer)
    assert (tokenizer.vocab_size, ids.dtype) == (size, kind)
    assert ids.tolist() == [size - 1, tokenizer.special.eos, len(SPECIAL_TOKENS)]
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 0


@pytest.mark.parametrize("name", ["text.txt", "table.csv"])
def test_a_text_that_changes_while_it_is_read_is_not_cached(tmp_path: Path, caches: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("text\naaaa bbbb\n")
    corpus = corpora.load(str(path))
    tokenizer = token_cache.train_tokenizer(corpus, {"name": "char"})
    for content in ("text\nbbbb aaaa\n", "text\nnew\n"):
        path.write_text(content)
        for reading in (partial(token_cache.encode, corpus, tokenizer), partial(list, corpus.read("sampling", 3))):
            with pytest.raises(ConfigError, match=rf"data.path: .*{name} has changed, or cannot be read to its end"):
                reading()
    assert not list(caches.glob("*.npy"))


@pytest.mark.parametrize("damaged", [slice(20), slice(-1), slice(0), slice(1, None)], ids=str)
def test_a_damaged_entry_is_made_again(tmp_path: Path, caches: Path, damaged: slice, monkeypatch) -> None:
    def cached() -> list[str]:
        corpus = corpora.load(file(tmp_path, "to be\nor not\n\nto be"))
        tokenizer = token_cache.train_tokenizer(corpus, {"name": "char"})
        return tokenizer.tokens(token_cache.encode(corpus, tokenizer).tolist())

    before = cached()
    for entry in caches.iterdir():
        entry.write_bytes(entry.read_bytes()[damaged])
    assert cached() == before
    monkeypatch.setattr(CharTokenizer, "__module__", "of a notebook")  # trained each time
    assert (cached(), len([*caches.iterdir()])) == (before, 2)


def test_unfinished_entries_are_removed_unless_somebody_writes(tmp_path: Path, caches: Path) -> None:
    caches.mkdir()
    unfinished, other = caches / ".entry.npy.0123abcd.part", os.open(caches, os.O_RDONLY)
    for number, lock in enumerate((fcntl.LOCK_SH, fcntl.LOCK_UN)):  # of another process, which ends then
        fcntl.flock(other, lock)
        unfinished.touch()
        token_cache.encode(corpora.load(file(tmp_path, f"text {number}")), ByteTokenizer().train([]))
        assert unfinished.exists() == (lock == fcntl.LOCK_SH)
    os.close(other)


def test_errors_name_the_cache(tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch, impatient: None) -> None:
    monkeypatch.setattr("builtins.print", Mock(side_effect=BrokenPipeError))  # of progress
    corpus, tokenizer = corpora.load(file(tmp_path, "text")), ByteTokenizer().train([])
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(ConfigError, match=rf"cache folder {caches} cannot .*No space left on device\): set .* MINITX_"):
        token_cache.encode(corpus, tokenizer)
    assert not any(caches.iterdir())
    monkeypatch.setenv("MINITX_CACHE", "~nosuchuser/cache")
    with pytest.raises(ConfigError, match=r"set the .* MINITX_CACHE: there is no home folder for ~nosuchuser/cache"):
        token_cache.encode(corpus, tokenizer)
    monkeypatch.setenv("MINITX_CACHE", __file__)
    with pytest.raises(ConfigError, match=f"cache folder {__file__} cannot be written"):
        token_cache.train_tokenizer(corpus._replace(chunks=pytest.fail), {"name": "char"})  # before reading
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, folder in (("~/elsewhere", "elsewhere"), ("", ".cache/minitx")):
        monkeypatch.setenv("MINITX_CACHE", named)
        assert token_cache.cache_folder() == tmp_path / folder
