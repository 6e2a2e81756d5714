"""Text in chunks: nothing lost, divisions into documents, samples, tables of characters and bytes, progress."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from tqdm import tqdm

from minitx.data.text import readers as reading
from minitx.data.text import token_cache as encoded
from minitx.data.text.readers import Chunk, Corpus, border, pieces, text_files
from minitx.data.text.tokenizer_training import TOKENIZERS, BPETokenizer, ByteTokenizer, CharTokenizer, lookup
from minitx.data.text.work_progress import progress

TEXTS = st.text(st.sampled_from("ab \n\r\u00e9\U0001f600\ufeff\x00"), max_size=60)
UNICODE = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=4)
POEM = "one\ntwo\n\nthree\n  \n\n  four\n\n\n"


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Corpus]:
    """read(content, ..., documents=..., chunk=...): the corpus of a file for each content."""

    def make(*contents: str | bytes, documents: str = "whole", chunk: int = 1 << 20) -> Corpus:
        monkeypatch.setattr(reading, "CHUNK_BYTES", chunk)
        files = [tmp_path / f"{number}.txt" for number in range(len(contents))]
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return text_files(files, documents)

    return make


def documents(corpus: Corpus) -> list[str]:
    """The documents of a corpus, put together again from its ids."""
    tokenizer = CharTokenizer().train(chunk.texts for chunk in corpus.chunks())
    ids = encoded.encode(corpus, tokenizer).tolist()
    ends = [place for place, token in enumerate(ids) if token == tokenizer.special.eos]
    return [tokenizer.decode(ids[start + 1 : end]) for start, end in itertools.pairwise([-1, *ends, len(ids)])]


@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize(("kind", "expected"), [
    ("whole", [POEM + "five\n\nsix"]),
    ("file", [POEM, "five\n\nsix"]),
    ("paragraph", ["one\ntwo", "three", "  four", "five", "six"]),
    ("line", ["one", "two", "three", "  ", "  four", "five", "six"]),
])  # fmt: skip
def test_divisions_into_documents(read: Callable, kind: str, expected: list[str], chunk: int) -> None:
    corpus = read(POEM, "five\n\nsix", documents=kind, chunk=chunk)
    assert documents(corpus) == expected
    assert corpus.key not in {read(POEM, "five\n\nsix", documents=other).key for other in {*reading.DIVISIONS} - {kind}}
    assert corpus.key != read(POEM + "five", "\n\nsix", documents=kind).key, "other files"


@given(st.lists(TEXTS.filter(lambda text: text.strip("\ufeff")), min_size=1, max_size=3), st.integers(1, 20))
@example(["\ufeffone\n", "\ufefftwo\n"], 1)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_chunks_change_nothing_nor_does_a_byte_order_mark(read: Callable, contents: list[str], chunk: int) -> None:
    whole = [content.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n") for content in contents]
    assert documents(read(*contents, chunk=chunk)) == ["".join(whole)]
    assert documents(read(*contents, documents="file", chunk=chunk)) == whole
    lines = [line for content in whole for line in content.split("\n") if line]
    assert documents(read(*contents, documents="line", chunk=chunk)) == (lines or [""])


@given(TEXTS, st.integers(1, 9))
def test_pieces_are_small_and_join_to_the_text(text: str, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MAX_PIECE_CHARACTERS", most)
        cut = [*pieces(text)]
    assert "".join(cut) == text
    assert all(0 < len(piece) <= most for piece in cut)


def test_text_is_best_cut_after_a_line_then_before_a_word() -> None:
    texts = {"ab\ncd ef": 3, "ab cd ef": 5, "abcdefgh": 8, " abcdefg": 8, "ab\ncd\nef": 6}
    assert {text: border(text, 0, 8) for text in texts} == texts


@pytest.mark.parametrize("name", ["bpe", "unigram", "word"])
def test_tokens_do_not_depend_on_the_line_breaks_at_which_a_text_is_cut(name: str) -> None:
    text = "def f(x):\n    return x\n\n\n  # and so on\n\tx = f(2)\n" * 20
    tokenizer = TOKENIZERS[name](**{} if name == "word" else {"size": 300}).train([[text]])
    assert lookup(tokenizer) is None, "only characters and bytes have a table"
    lines = tokenizer.encode_batch(text.splitlines(keepends=True))
    assert tokenizer.encode(text) == [token for line in lines for token in line]
    tokenizer.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert lookup(tokenizer) is None, "nor does a rule for bytes alone make one"


@given(UNICODE, UNICODE)
@settings(max_examples=40)
def test_a_table_gives_the_ids_of_the_tokenizer(seen: list[str], texts: list[str]) -> None:
    for tokenizer in (CharTokenizer().train([seen]), ByteTokenizer().train([seen])):
        expected, table = tokenizer.encode_batch([*texts, *seen]), lookup(tokenizer)
        ids, counts = table([*texts, *seen])
        assert ids.tolist() == [token for row in expected for token in row]
        assert counts.tolist() == [*map(len, expected)]


def test_counts_of_texts_that_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_PIECE_CHARACTERS", 4)
    tokenizer = BPETokenizer(262).train([["x"]])
    texts = ["abc def ghi", "", "jk", "lm\nno\npq"]
    ids, counts = encoded._encoded_texts(texts, True, tokenizer)
    assert counts.tolist() == [*map(len, texts)]
    assert tokenizer.decode(ids.tolist()) == "".join(texts)


def numbered(chunks: int, size: int | None) -> Corpus:
    files = [(Chunk([str(number)], False, 10), Chunk([], False, 0)) for number in range(chunks)]  # each with an end
    return Corpus("key", lambda: itertools.chain.from_iterable(files), True, size)


def taken(corpus: Corpus, most: int | None) -> list[int]:
    return [int(text) for chunk in corpus.read("x", most) for text in chunk.texts]


def test_a_sample_is_spread_evenly_or_the_beginning_of_a_text_of_unknown_size() -> None:
    assert [taken(numbered(100, 1000), most) for most in (200, 500)] == [[*range(0, 100, 5)], [*range(0, 100, 2)]]
    assert taken(numbered(100, None), 200) == [*range(20)]
    assert taken(numbered(1, 10), 1) == [0], "never nothing"
    for size in (None, 1000):
        for most in (None, 1000, 5000):
            assert taken(numbered(100, size), most) == [*range(100)], "small enough to be taken whole"


def test_a_tokenizer_is_trained_on_its_share() -> None:
    def corpus(*texts: str) -> Corpus:
        return Corpus(f"{texts}", lambda: iter([Chunk([text * 30], True, 900_000) for text in texts]))

    few, more, words = corpus("ab ", "qz "), corpus("ab ", "ab ", "qz "), {"name": "word", "sample": 1}
    assert "qz" in encoded.train_tokenizer(few, words).alphabet, "begins below the limit"
    assert "qz" not in encoded.train_tokenizer(more, words).alphabet
    assert "q" in encoded.train_tokenizer(more, {"name": "char"}).alphabet, "every character is seen"


def test_a_tokenizer_is_trained_once(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(text: str = "some text\n", **options: int) -> dict[str, Any]:
        return encoded.train_tokenizer(read(text * 50), {**options, "name": "bpe"}).to_dict()

    first = trained(size=300)
    assert first not in (trained("text some\n", size=300), trained(size=265))
    monkeypatch.setattr(BPETokenizer, "train", lambda *args: pytest.fail("trained again"))
    assert trained(size=300) == trained(sample=100, size=300) == first


@pytest.mark.parametrize(("total", "end"), [(2_048_000_000, " of 2.05GB, 00:00 left"), (None, "")])
def test_long_work_prints_lines(total: int | None, end: str, impatient: None, capsys: pytest.CaptureFixture) -> None:
    parts = [1_024_000_000, 500_000_000]
    assert [*progress(parts, "encoding", lambda part: part, total, "B")] == parts
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[-2:]) == ("", [f"encoding: {size}GB{end}" for size in ("1.02", "1.52")])


def test_on_a_terminal_a_bar_is_rewritten_and_removed(impatient: None, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    list(progress([1_000_000] * 3, "encoding", lambda part: part, 3_000_000, "B"))
    err = capsys.readouterr().err
    assert "\n" not in err
    assert "encoding: 100%" in err
    assert not err.split("\r")[-2].strip()
    monkeypatch.setattr("minitx.data.text.work_progress._Bar", lambda **options: tqdm(**options, disable=True))
    assert [*progress([1], "encoding")] == [1], "with TQDM_DISABLE"


def test_reading_a_corpus_is_shown_once(read: Callable, impatient: None, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = read(*["some text\n" * 100] * 2)
    shown = []
    for _ in range(2):
        encoded.encode(corpus, encoded.train_tokenizer(corpus, {"name": "char"}))
        shown.append(capsys.readouterr().err)
    assert all(f"{work}: 2.00kB of 2.00kB" in shown[0] for work in ("reading", "training the tokenizer", "encoding"))
    assert shown[1] == "", "both are cached"
