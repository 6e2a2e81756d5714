from pathlib import Path

import pytest

from minitx.data.text.parallel_files import read

PAIRS = [("Ein Hund.", "A dog."), ("Zwei, „Katzen“\u2028hier", "Two cats"), ("", "Nothing"), ("Drei\x85\x0b", "Three")]
STRIPPED = [*PAIRS[:3], ("Drei", "Three")]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def two_files(folder: Path, ending: str = "\n", last: bool = True, mark: str = "") -> None:
    for side, language in enumerate(("de", "en")):
        lines = ending.join(pair[side] for pair in PAIRS)
        write(folder, f"train.{language}", mark + lines + (ending if last else ""))


@pytest.mark.parametrize(("ending", "last", "mark"), [("\n", True, ""), ("\r\n", False, "\ufeff"), ("\n", False, "")])
def test_lines_of_two_files_are_pairs_however_they_end(tmp_path: Path, ending: str, last: bool, mark: str) -> None:
    two_files(tmp_path, ending, last, mark)
    assert read(str(tmp_path), "train", "de", "en", "training") == STRIPPED
    assert read(str(tmp_path), "train", "en", "de", "training") == [pair[::-1] for pair in STRIPPED]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("all.tsv", 'number\ten\tde\n1\t"A" dog.\t"Ein" Hund.\n\n2\tTwo, cats\tZwei\n'),
        ("all.csv", 'number,en,de\n1,"""A"" dog.","""Ein"" Hund."\n\n2,"Two, cats",Zwei\n'),
        ("all.jsonl", '{"en": "\\"A\\" dog.", "de": "\\"Ein\\" Hund."}\n\n{"de": "Zwei", "en": "Two, cats", "n": 2}\n'),
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_one_file_names_its_columns(tmp_path: Path, name: str, content: str, ending: str) -> None:
    write(tmp_path, name, content.replace("\n", ending))
    expected = [('"Ein" Hund.', '"A" dog.'), ("", ""), ("Zwei", "Two, cats")]
    assert read(str(tmp_path), name, "de", "en", "training") == expected


def refused(folder: Path | str, name: str = "train", key: str = "training") -> str:
    with pytest.raises(ValueError, match="data") as caught:
        read(str(folder), name, "de", "en", key)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_of_different_lengths_are_refused_with_both_lengths(tmp_path: Path) -> None:
    two_files(tmp_path)
    write(tmp_path, "train.en", "one line\n" * 1234)
    sentence = refused(tmp_path)
    assert "data.training" in sentence
    assert "train.de has 4 lines" in sentence
    assert "train.en has 1,234" in sentence


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    sentence = refused(tmp_path / "nowhere", "val", "validation")
    assert sentence.startswith("data.path")
    assert "val.de and val.en" in sentence
    two_files(tmp_path)
    (tmp_path / "train.en").unlink()
    assert f"data.training: there is no file {tmp_path / 'train.en'}" in refused(tmp_path)
    assert f"data.test: there is no file {tmp_path / 'x.tsv'}" in refused(tmp_path, "x.tsv", "test")
    (tmp_path / "train.en").mkdir()
    assert "cannot be read" in refused(tmp_path)


def test_what_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    two_files(tmp_path)
    write(tmp_path, "train.de", b"Hund\nKatze\nB\xe4r\nMaus\n")
    assert "train.de is not UTF-8 text (line 3)" in refused(tmp_path)


@pytest.mark.parametrize("content", ["", "\n\n\n", "\n \n\t\n"])
def test_files_without_a_pair_are_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path, "train.de", content)
    write(tmp_path, "train.en", "word\n" * content.count("\n"))
    assert "train.de and train.en" in refused(tmp_path)
    assert "holds no pair of sentences" in refused(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", "en\tfr\nA\tB\n", "data.source: "),
        ("x.csv", "de,fr\nA,B\n", "no column en, only de, fr"),
        ("x.tsv", "", "no column de, only "),
        ("x.tsv", "de\ten\nA\tB\nA\tB\tC\n", "line 3 of"),
        ("x.csv", "de,en\nA\n", "has 1 columns instead of 2"),
        ("x.jsonl", '{"de": "A", "en": "B"}\n{"de": "A"}\n', "line 2 of"),
        ("x.jsonl", '{"de": "A", "en": 3}\n', "not an object with the texts de and en"),
        ("x.csv", f"de,en\n{131_073 * 'A'},B\n", "field larger than field limit"),
        ("x.jsonl", "[1]\n", "line 1 of"),
        ("x.jsonl", '{"de": "\\ud800", "en": "B"}\n', "line 1 of"),
        ("x.jsonl", "de en\n", "line 1 of"),
        ("x.jsonl", "", "x.jsonl in"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    write(tmp_path, name, content)
    assert message in refused(tmp_path, name)
