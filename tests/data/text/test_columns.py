"""Tables of text: JSON, JSON Lines, CSV, TSV, Parquet, folders of them, and data sets on the hub."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import pytest

from minitx.data.tasks.text import Text
from minitx.data.text import columns, corpora
from minitx.data.text.readers import Corpus

TEXTS = ["one\n\ttwo\nthree", "NA", "007", 'with "quotes", commas\tand tabs', "\u00e9 \U0001f600"]


def separated(rows: list[dict[str, Any]], delimiter: str) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    datasets.Dataset.from_list(rows).to_parquet(out)
    return out.getvalue()


FORMATS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    ".json": lambda rows: json.dumps(rows, indent=1).encode(),
    ".jsonl": lambda rows: "".join(json.dumps(row) + "\n" for row in rows).encode(),
    ".ndjson": lambda rows: "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode(),
    ".csv": lambda rows: separated(rows, ","),
    ".tsv": lambda rows: separated(rows, "\t"),
    ".parquet": parquet,
}
every_format = pytest.mark.parametrize("suffix", [*FORMATS, ".JSON"])


def table(folder: Path, suffix: str, texts: list[str], column: str = "text", name: str = "table") -> str:
    path = folder / f"{name}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(FORMATS[suffix.lower()]([{"number": number, column: text} for number, text in enumerate(texts)]))
    return str(path)


def documents(corpus: Corpus) -> list[str]:
    chunks = [*corpus.chunks()]
    assert all(not chunk.unfinished for chunk in chunks), "rows are whole"
    return [text for chunk in chunks for text in chunk.texts]


@every_format
def test_each_row_with_text_is_a_document(tmp_path: Path, suffix: str) -> None:
    corpus = corpora.load(table(tmp_path, suffix, ["", *TEXTS, "  \n", "b", ""]))
    assert corpus.packed
    assert documents(corpus) == documents(corpus) == [*TEXTS, "b"]
    assert documents(corpora.load(table(tmp_path, suffix, ["2020-01-31"]))) == ["2020-01-31"]
    assert documents(corpora.load(table(tmp_path, ".csv", ["if a:\n\tb"]))) == ["if a:\n\tb"], "no two rows of a .tsv"


def test_a_folder_is_its_tables_in_order(tmp_path: Path) -> None:
    for name in ("deeper", "deep/state", "a"):
        table(tmp_path / "folder", ".json", [name], name=name)
    (tmp_path / "folder/deep/.ipynb_checkpoints").mkdir()
    for other in ("README.md", "._a.jsonl", "deep/.ipynb_checkpoints/a-checkpoint.json"):  # of macOS and Jupyter
        (tmp_path / "folder" / other).write_text("not part of it")
    assert documents(corpora.load(str(tmp_path / "folder"))) == ["a", "deep/state", "deeper"]
    datasets.DatasetDict(a=datasets.Dataset.from_dict({"text": ["x"]})).save_to_disk(tmp_path / "saved")
    datasets.load_from_disk(tmp_path / "saved").filter(bool).map(dict)  # both are stored there
    assert len([*(tmp_path / "saved").rglob("cache-*.arrow")]) == 2
    assert documents(corpora.load(str(tmp_path / "saved"))) == ["x"]
    shutil.copytree(tmp_path / "saved/a", tmp_path / "saved/b")
    refused(str(tmp_path / "saved"), r"data\.path: .*saved has several splits: give the folder of one \(a, b\)$")
    (tmp_path / "folder" / "c.txt").write_text("text")
    refused(str(tmp_path / "folder"), r"data\.path: .*several kinds \(3 \.json, 1 \.txt\)")


def test_no_copy_is_made_of_a_table_and_rows_without_text_are_skipped(tmp_path: Path) -> None:
    path = Path(table(tmp_path, ".jsonl", ["x" * 4_000_000] * 3))
    path.write_text(path.read_text() + 'null\n{"text": null}\n{"o": 1}\n{"text": "b", "number": "c"}\n')  # beyond 10 MB
    path.write_text('{"text": NaN}\n{"o": 1}\n' * columns.TABLE_ROWS + path.read_text())
    assert documents(corpora.load(str(path)))[3:] == ["b"]
    assert sum(each.stat().st_size for each in {*filter(Path.is_file, tmp_path.rglob("*"))} - {path}) < 1000


def test_a_key_depends_on_content_column_and_documents(tmp_path: Path) -> None:
    path = table(tmp_path, ".jsonl", ["a", " \n", "b"])
    whole = corpora.load(path, documents="whole")
    assert not whole.packed
    assert "".join(text for chunk in whole.chunks() for text in chunk.texts if chunk.unfinished) == "a \nb"
    rows = corpora.load(path).key
    assert rows == corpora.load(path, documents="row").key
    other = corpora.load(table(tmp_path, ".jsonl", ["a", "c"]))
    assert len({rows, corpora.load(path, "number").key, whole.key, other.key}) == 4


def refused(path: str, sentence: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        [*corpora.load(path, **options).chunks()]
    assert "\n" not in str(caught.value)
    assert caught.traceback[-1].path.is_relative_to(Path(corpora.__file__).parent), "our message"


@every_format
def test_an_unknown_column(tmp_path: Path, suffix: str) -> None:
    texts = columns.TABLE_ROWS * TEXTS
    path = table(tmp_path, suffix, texts, "story")
    refused(path, r"data\.column: .*table\.\w+ has no column 'storys'; did you mean story\?", column="storys")
    assert documents(Text().on_file(path)._corpus) == texts, "the only column of text"
    Path(path).write_bytes(FORMATS[suffix.lower()]([{"a": "x", "b": "y"}]))
    with pytest.raises(ValueError, match=r"--path: .* rename the column to read to text$"):
        Text().on_file(path)


@pytest.mark.parametrize(("name", "content", "sentence"), [
    ("x.jsonl", b'{"text": "a"}\n\n{"text": "b"\n{"text": "c"}\n', r"x\.jsonl, line 3, is not JSON \(Expecting"),
    ("x.jsonl", b'{"text": "a"}\n["b"]\n', r"x\.jsonl, line 2, is not an object"),
    ("x.jsonl", b'null\n{"text": "a", "text": "b"}\n', r"x\.jsonl, line 2, .* \(a key is specified twice"),
    ("x.jsonl", b'{"text": "a"}\n{"text": "\\ud800"}\n', r"x\.jsonl, line 2, has half of a surrogate pair"),
    ("x.json", b"just some text\nin lines\n", r"x\.json, line 1, is not JSON .*end in \.txt"),
    ("x.json", b'[{"text": "a"},\n {"text": }]', r"x\.json, line 2, is not JSON"),
    ("x.json", b'[{"text": "a", "text": "b"}]', r"x\.json, in which one object has a key twice, is not JSON"),
    ("x.json", b'{"text": "\xff"}\n', r"x\.json.*UTF-8"),
    ("x.json", b'[{"text": "a"}, 2]', r"x\.json, row 2, is not an object"),
    ("x.json", b'["a", {"text": "\\ud800"}]', r"x\.json, row 2, has half of a surrogate pair"),
    ("x.jsonl", b'["a"]\n["b"]\n', r"x\.jsonl, line 2, is not JSON \(Extra data"),
    ("x.csv", b"text,a\n1,2\n3,4,5,6\n", r"x\.csv cannot be read as csv .*line 3"), ("x.csv", b"", r"x\.csv is empty"),
    ("x.csv", b"number,text,\n1,one,two,\n", r"x\.csv must be a name for each of its 4 columns .*, got 3"),
    ("x.csv", b"text\n\xff\n", r"x\.csv is not UTF-8"),
    ("x.csv", b"text" + b"," * 10**6 + b"\n1\n", r"x\.csv must be the names of its columns in at most"),
    ("x.tsv", b'text\tn\na "b"\t1\n"a\t2\n"b\t3\n', r"lines 3 to 4 of .*x\.tsv are one row by their quotes"),
    ("x.csv", b'text,n\na "b",1\n"a \\"b\\" c",2\n', r"line 3 of .*x\.csv has text after a closing quote"),
    ("x.csv", b'text,"a"b\n"say \\"hi\\" now",1\n', r"line 2 of .*x\.csv has text after a closing quote, not ','"),
    ("x.tsv", b'text\tn\na "b"\t1\n"a" b\t2\n', r"line 3 of .*x\.tsv has text after a closing quote"),
    ("x.tsv", b'n\ttext\n1\t"a\n2\tb\n3\tc"\n', r"lines 2 to 4 of .*x\.tsv are one row"),
    ("x.parquet", b"nonsense", r"x\.parquet cannot be read as parquet"),
])  # fmt: skip
def test_a_broken_table(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    refused(str(tmp_path / name), rf"data\.path: .*{sentence}")


def test_a_sample_of_a_table_counts_its_column_alone_and_one_without_rows_holds_no_text(tmp_path: Path) -> None:
    empty = datasets.Dataset.from_dict({"text": []}, features=datasets.Features({"text": datasets.Value("string")}))
    empty.to_parquet(tmp_path / "x.parquet")
    assert documents(corpora.load(str(tmp_path / "x.parquet"))) == []
    rows = [{"other": "x" * 1000, "text": f"é{number:04}"} for number in range(3000)]
    (tmp_path / "x.jsonl").write_bytes(FORMATS[".jsonl"](rows))
    read = corpora.load(str(tmp_path / "x.jsonl")).read("", max_bytes=6 * 2000)
    assert [text for chunk in read for text in chunk.texts] == [row["text"] for row in rows[:2000]]


def test_a_column_of_numbers_or_divisions_that_a_file_does_not_have(tmp_path: Path) -> None:
    refused(table(tmp_path, ".parquet", TEXTS), r"data\.column: .*column 'number' holds int, not text", column="number")
    refused(table(tmp_path, ".csv", ["a"]), r"data\.documents: paragraph is for text files", documents="paragraph")
    (tmp_path / "x.txt").write_text("text")
    refused(str(tmp_path / "x.txt"), r"data\.documents: row is for tables", documents="row")


def test_a_data_set_on_the_hub_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its key until it changes. It is a folder here, whose version changes with its table."""
    path, builder = table(tmp_path / "hub", ".jsonl", ["a", "b", ""], name="train"), datasets.load_dataset_builder

    def here(name: str, *options: Any) -> Any:
        assert name == "some/data"
        return builder(str(tmp_path / "hub"), *options, cache_dir=str(tmp_path / "datasets"))

    monkeypatch.setattr(datasets, "load_dataset_builder", here)
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: pytest.fail("made a copy"))
    load = partial(corpora.load, "some/data", streaming=True)
    corpus = load()
    assert documents(corpus) == documents(corpus) == ["a", "b"]
    assert not [*tmp_path.rglob("*.arrow")]
    assert load().key == corpus.key not in (load(column="number").key, load(documents="whole").key)
    Path(path).unlink()
    with pytest.raises(ValueError, match=r"data\.path: reading some/data failed"):
        [*corpus.chunks()]
    table(tmp_path / "hub", ".jsonl", ["a", "c", "d"], name="train")
    assert load().key != corpus.key


def test_a_data_set_on_the_hub_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Mock(return_value=datasets.Dataset.from_dict({"number": [1, 2], "text": ["a", "b"]}))
    monkeypatch.setattr(datasets, "load_dataset", load)
    refused("some/data", r"data\.column: some/data has no column 'body'; known are: number, text", column="body")
    corpus = corpora.load("some/data", subset="small")
    load.assert_called_with("some/data", "small", split="train")
    assert (documents(corpus), corpus.size > 0) == (["a", "b"], True)
    assert corpora.load("some/data").key == corpus.key != corpora.load("some/data", "number").key


@pytest.mark.parametrize("streaming", [False, True])
def test_a_failing_hub_is_one_sentence(streaming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = Mock(side_effect=RuntimeError("Config name is missing.\nPlease pick one"))
    monkeypatch.setattr(datasets, "load_dataset_builder" if streaming else "load_dataset", fail)
    refused("some/data", r"data\.path: some/data .*\(RuntimeError: Config name is missing\.\)", streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_without_a_network_a_hub_is_refused_at_once(streaming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    offline = datasets.config.HF_HUB_OFFLINE
    monkeypatch.setattr("socket.getaddrinfo", Mock(side_effect=OSError(-2, "Name or service not known")))
    monkeypatch.setattr("minitx.hardware.machine.getproxies", dict)
    monkeypatch.setattr("time.sleep", Mock(side_effect=AssertionError("no waiting between tries")))
    sentence = r"data\.path: some/data is .*\(there is no connection to huggingface\.co: its name cannot be resolved\)$"
    refused("some/data", sentence, streaming=streaming)
    assert offline == datasets.config.HF_HUB_OFFLINE
