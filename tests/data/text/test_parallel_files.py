from pathlib import Path

import pytest

from minitx.config.errors import ConfigError
from minitx.data.text.parallel_files import read

PAIRS = [("Ein Hund.", "A dog."), ("Zwei, „Katzen“\u2028hier", "Two cats"), ("", "Nothing"), ("Drei\x85\x0b", "Three")]
STRIPPED = [*PAIRS[:3], ("Drei", "Three")]
NONE = "train.de and train.en in .* holds no pair of sentences"


@pytest.mark.parametrize(("ending", "last", "mark"), [("\n", True, ""), ("\r\n", False, "\ufeff"), ("\n", False, "")])
def test_lines_of_two_files_are_pairs_however_they_end(tmp_path: Path, ending: str, last: bool, mark: str) -> None:
    for side, language in enumerate(("de", "en")):
        lines = ending.join(pair[side] for pair in PAIRS)
        (tmp_path / f"train.{language}").write_bytes((mark + lines + ending * last).encode())
    assert read(str(tmp_path), "train", "de", "en", "data.training") == STRIPPED
    assert read(str(tmp_path), "train", "en", "de", "data.training") == [pair[::-1] for pair in STRIPPED]


@pytest.mark.parametrize(("name", "content"), [
    ("all.tsv", 'number\ten\tde\n1\t"A" dog.\t"Ein" Hund.\n\n2\tTwo, cats\tZwei\n'),
    ("all.csv", 'number,en,de\n1,"""A"" dog.","""Ein"" Hund."\n\n2,"Two, cats",Zwei\n'),
    ("all.jsonl", '{"en": "\\"A\\" dog.", "de": "\\"Ein\\" Hund."}\n\n{"de": "Zwei", "en": "Two, cats", "n": 2}\n'),
])  # fmt: skip
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_one_file_names_its_columns(tmp_path: Path, name: str, content: str, ending: str) -> None:
    (tmp_path / name).write_bytes(content.replace("\n", ending).encode())
    expected = [('"Ein" Hund.', '"A" dog.'), ("", ""), ("Zwei", "Two, cats")]
    assert read(str(tmp_path), name, "de", "en", "data.training") == expected


@pytest.mark.parametrize(("name", "contents", "message"), [
    ("train", {"de": "a\n" * 4, "en": "a\n" * 1234}, r"train\.de has 4 lines .*train\.en has 1,234"),
    ("train", {"de": b"Hund\nB\xe4r\nMaus\n", "en": "a\n" * 3}, r"train.de is not UTF-8 text \(line 2\)"),
    ("train", {"de": "word\n"}, r"data\.training: there is no file .*/train\.en"),
    ("train", {"de": None, "en": "word\n"}, "train.de cannot be read"),
    *(("train", {"de": empty, "en": "word\n" * empty.count("\n")}, NONE) for empty in ("", "\n\n", "\n \n\t\n")),
    ("x.tsv", {}, r"data\.training: there is no file .*/x\.tsv"),
    ("x.tsv", {"x.tsv": "en\tfr\nA\tB\n"}, r"data\.source: "),
    ("x.csv", {"x.csv": "de,fr\nA,B\n"}, "no column en; known are: de, fr"),
    ("x.tsv", {"x.tsv": ""}, "no column de; it has none"),
    ("x.tsv", {"x.tsv": "de\ten\nA\tB\nA\tB\tC\n"}, "line 3 of"),
    ("x.csv", {"x.csv": 'de,en\nA,B\n"Er" sagt,C\n'}, "line 3 of .* expected after"),
    ("x.tsv", {"x.tsv": 'de\ten\nA\tB\n"Er: ""Ja"""\tC\n'}, "line 3 of .* a cell is in quotes"),
    ("x.json", {"x.json": "[]"}, r"data\.training must name one file \(.*tsv.* or .*, got .*x\.json"),
    ("x.csv", {"x.csv": "de,en\nA\n"}, "has 1 columns instead of 2"),
    ("x.jsonl", {"x.jsonl": '{"de": "A", "en": "B"}\n{"de": "A"}\n'}, "line 2 of"),
    ("x.jsonl", {"x.jsonl": '{"de": "A", "en": 3}\n'}, "not an object with the texts de and en"),
    ("x.csv", {"x.csv": f"de,en\n{131_073 * 'A'},B\n"}, "field larger than field limit"),
    ("x.jsonl", {"x.jsonl": "[1]\n"}, "line 1 of"),
    ("x.jsonl", {"x.jsonl": '{"de": "A", "de": "Z", "en": "B"}\n'}, "line 1 of"),
    ("x.jsonl", {"x.jsonl": '{"de": "\\ud800", "en": "B"}\n'}, "line 1 of"),
    ("x.jsonl", {"x.jsonl": "de en\n"}, "line 1 of"),
    ("x.jsonl", {"x.jsonl": ""}, "x.jsonl in"),
])  # fmt: skip
def test_files_that_do_not_fit_are_refused(tmp_path: Path, name: str, contents: dict, message: str) -> None:
    for suffix, content in contents.items():
        file = tmp_path / (suffix if "." in suffix else f"{name}.{suffix}")
        if content is None:
            file.mkdir()
        else:
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message) as caught:
        read(str(tmp_path), name, "de", "en", "data.training")
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_named_with_the_files_that_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data\.path: .*nowhere.* val\.de and val\.en"):
        read(str(tmp_path / "nowhere"), "val", "de", "en", "data.validation")
