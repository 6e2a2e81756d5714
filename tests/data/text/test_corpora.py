"""Text files to chunks (corpora.py, reading.py), and chunks to one flat file of ids (encoded.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from minitx.data import tokenizers
from minitx.data.text import corpora
from minitx.data.text import readers as reading
from minitx.data.text import token_cache as encoded
from minitx.data.text.readers import Chunk, Corpus
from minitx.data.text.tokenizer_training import CharTokenizer
from minitx.data.tokenizers import Tokenizer

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ours and the datasets library's, both in a folder of their own."""
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str | bytes], str]:
    """file(content) writes text.txt and returns its path; a second call is a later edit of it."""
    edits = 0

    def write(content: str | bytes, name: str = "text.txt") -> str:
        nonlocal edits
        edits += 1
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        os.utime(path, (1e9 + edits, 1e9 + edits))  # however quick the test, an edit is an edit
        return str(path)

    return write


def text(corpus: Corpus) -> str:
    return "".join(text for chunk in corpus.chunks() for text in chunk.texts)


def trained(corpus: Corpus) -> Tokenizer:
    return CharTokenizer().train(chunk.texts for chunk in corpus.chunks())


def running(text: str) -> Corpus:
    """A corpus of one chunk."""
    return Corpus("key", lambda: iter([Chunk([text], True, 1)]))


# ---- corpora ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_all_its_txt_files_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deeper").mkdir(parents=True)
    for name, content in (("b.txt", "second\n"), ("a.txt", "first\n"), ("deeper/c.txt", "third\n"), ("d.md", "no\n")):
        (folder / name).write_text(content)
    assert text(corpora.load(str(folder))) == "first\nsecond\nthird\n"


def test_a_changed_file_is_read_anew_even_if_its_time_was_kept(file: Callable) -> None:
    path = file("before\n")
    corpora.load(path)
    os.utime(file("after!\n"), (1e9, 1e9))  # as rsync -t, cp -p, tar and many an unpacked archive do
    first = text(corpora.load(path))
    os.utime(file("again!\n"), (1e9, 1e9))
    assert (first, text(corpora.load(path))) == ("after!\n", "again!\n")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00text", "is not UTF-8"),
        (b"good until here \x80 and after", "is not UTF-8"),
        (b"x" * 100_000 + b"\xc3", "is not UTF-8"),  # cut in the middle of a character, at the very end
    ],
)
def test_what_is_not_text_is_refused(file: Callable, content: bytes, reason: str) -> None:
    path = file(content)
    with pytest.raises(ValueError, match=r"data\.path") as caught:
        corpora.load(path)
    assert path in str(caught.value)
    assert reason in str(caught.value)


def test_the_place_of_a_wrong_byte_is_told_also_far_into_a_file(file: Callable) -> None:
    before = "é" * 700_000  # more than a megabyte: past the first piece that is checked
    with pytest.raises(ValueError, match=r"near byte (\d+)") as caught:
        corpora.load(file(before.encode() + b"\xff rest"))
    near = int(str(caught.value).partition("near byte ")[2].split(")")[0])
    assert abs(near - len(before.encode())) < 10


@pytest.mark.parametrize("path", ["missing.txt", "no/such/folder/x.txt", "owner/file.txt", "README.md", "nonsense"])
def test_a_path_with_nothing_there_is_refused_with_what_would_do(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"data\.path: there is no file") as caught:
        corpora.load(path)
    assert path in str(caught.value)
    for name in corpora.CORPORA:
        assert name in str(caught.value)


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(ValueError, match=r"data\.path.*no \.txt file"):
        corpora.load(str(tmp_path / "folder"))


def test_an_unreadable_file_is_refused(file: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file("text\n")

    def forbidden(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbidden)  # file modes do not hold for root, who runs many a CI
    with pytest.raises(ValueError, match=r"data\.path.*cannot be read \(Permission denied\)"):
        corpora.load(path)


@pytest.mark.slow
def test_a_hub_name_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    code = (
        "from minitx.data.text import corpora\n"
        "try: corpora.load('nobody-at-all/no-such-data')\n"
        "except ValueError as error: print(error)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}  # read when the library is imported
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("data.path: nobody-at-all/no-such-data is neither a local file nor")
    assert said.stdout.count("\n") == 1


@pytest.mark.slow
def test_a_file_here_is_read_without_the_network(file: Callable, tmp_path: Path) -> None:
    code = (
        "import socket\n"
        "def refuse(*args, **kwargs): print('asked for', *args); raise OSError\n"
        "socket.getaddrinfo = socket.socket.connect = refuse\n"
        "from minitx.data.text import corpora\n"
        f"corpora.load({file('text')!r})"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment["HF_HOME"] = str(tmp_path)
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout == ""


def test_a_hub_table_without_text_is_refused_and_one_with_text_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = {"label": [1, 2]}
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: datasets.Dataset.from_dict(columns))
    corpus = corpora.load("some/labels")
    with pytest.raises(ValueError, match=r"data\.column: some/labels has no column 'text'; known are: label"):
        next(corpus.chunks())
    columns["text"] = ["a", "b"]  # type: ignore[list-item]
    assert text(corpora.load("some/labels")) == "ab"


def test_the_standard_library_is_ascii_files_in_a_stable_order() -> None:
    files = corpora.python_code()
    assert files != sorted(files)
    assert len(set(files)) == len(files) > 100
    for path in files:
        assert path.suffix == ".py"
        assert not {"tests", "test", "site-packages"} & set(path.parts)
    for path in files[::20]:
        assert path.read_bytes().isascii()
        assert path.stat().st_size > 0


def test_a_registered_corpus_is_a_path(file: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "CORPORA", dict(corpora.CORPORA))
    path = Path(file("mine\n"))
    corpora.register("mine")(lambda: [path])
    assert text(corpora.load("mine")) == "mine\n"


# ---- encoded ---------------------------------------------------------------------------------------------------------


def test_a_corpus_is_its_ids_in_a_row(file: Callable) -> None:
    corpus = corpora.load(file("to be\nor not\n\nto be"))
    tokenizer = trained(corpus)
    ids = encoded.encode(corpus, tokenizer)
    assert tokenizer.decode(ids.tolist()) == text(corpus)
    assert ids.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 0


def test_the_largest_vocabulary_of_two_bytes() -> None:
    tokenizer = tokenizers.symbols([str(number) for number in range(2**16 - len(tokenizers.SPECIAL_TOKENS))])
    last = tokenizer.alphabet[-1]
    ids = encoded.encode(running(last), tokenizer)
    assert ids.dtype == np.uint16
    assert tokenizer.tokens(ids.tolist()) == [last]


def test_a_second_run_does_not_tokenise(file: Callable, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file("once and for all\n")
    corpus = corpora.load(path)
    first = encoded.encode(corpus, trained(corpus)).tolist()
    monkeypatch.setattr(encoded, "_encoded", lambda *args: pytest.fail("tokenised again"))
    again = corpora.load(path)
    assert encoded.encode(again, trained(again)).tolist() == first
    assert len(list(caches.glob("*.uint*"))) == 1


@pytest.mark.slow
def test_another_process_finds_the_file_too(file: Callable, caches: Path) -> None:
    path = file("once and for all\n")
    corpus = corpora.load(path)
    ids = encoded.encode(corpus, trained(corpus)).tolist()
    code = (
        "from minitx.data.text import corpora, token_cache as encoded\n"
        "from minitx.data.text.tokenizer_training import CharTokenizer\n"
        f"corpus = corpora.load({path!r})\n"
        "tokenizer = CharTokenizer().train(chunk.texts for chunk in corpus.chunks())\n"
        "encoded._encoded = None\n"
        "print(encoded.encode(corpus, tokenizer).tolist())"
    )
    environment = {**os.environ, "HF_DATASETS_CACHE": str(datasets.config.HF_DATASETS_CACHE), "PYTHONHASHSEED": "77"}
    fresh = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert fresh.stdout.strip() == str(ids)
    assert len(list(caches.glob("*.uint*"))) == 1


def test_a_changed_text_gets_another_file(file: Callable, caches: Path) -> None:
    for content in ("ab ab\n", "ba ba\n"):  # of the same length and alphabet
        corpus = corpora.load(file(content))
        tokenizer = trained(corpus)
        assert tokenizer.decode(encoded.encode(corpus, tokenizer).tolist()) == content
    assert len(list(caches.glob("*.uint*"))) == 2


def fail_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    work = encoded._encoded

    def interrupted(*args: object) -> Iterator[np.ndarray]:
        yield next(work(*args))  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(reading, "CHUNK_BYTES", 8)
    monkeypatch.setattr(encoded, "_encoded", interrupted)


def test_an_interrupted_run_leaves_nothing_behind_and_is_repeated(
    file: Callable, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpora.load(file("first\nsecond\n"))
    tokenizer = trained(corpus)
    fail_half_way(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        encoded.encode(corpus, tokenizer)
    assert list(caches.glob("*.uint*")) == []
    monkeypatch.undo()
    monkeypatch.setenv("MINITX_CACHE", str(caches))
    assert tokenizer.decode(encoded.encode(corpus, tokenizer).tolist()) == "first\nsecond\n"


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MINITX_CACHE", "~/elsewhere")
    assert encoded.cache_folder() == tmp_path / "elsewhere"
    monkeypatch.delenv("MINITX_CACHE")
    assert encoded.cache_folder() == tmp_path / ".cache" / "minitx"
