"""Damaged and hostile event files, which TensorBoard still answers for; and corpora, which are read or refused."""

import gzip
import io
import itertools
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import FINE, REFUSED, Asked, few_and_many
from hostile import damaged
from tensorboard.compat.proto import event_pb2
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter

from minitx.data.tasks import TASKS
from minitx.data.tasks.base import generator
from minitx.tensorboard.writer import add_maps
from tests.data.text.test_columns import parquet
from tests.tensorboard.reading import Board, items


def look(folder: Path, content: bytes, asked: Asked, what: str) -> None:
    """Open it in TensorBoard and request everything that it lists."""
    folder.mkdir()
    (folder / "events.out.tfevents.1.x").write_bytes(content)
    try:
        board = Board(folder)
        places = [(run, tag, step) for run, tags in board.runs.items() for tag, steps in tags.items() for step in steps]
        requests = [("/header", {}), *(("/map", {"item": item}) for item in range(4))]
        for (run, tag, step), (page, item) in itertools.product(places, requests):
            place = {"run": run, "tag": tag, "step": step, **item}
            shown = board.get(page, **place).status_code == 200
            asked.note(FINE if shown else REFUSED, what, "" if shown else board.refusal(page, **place))
        assert board.client.get("/data/plugins_listing").status_code == 200
        asked.note(FINE, what, "")
    except Exception as error:
        asked.note("traceback", what, repr(error))


def rechecked(chance: random.Random, whole: bytes) -> bytes:
    """Events whose maps were changed, with valid checksums, as a hostile writer would make them."""
    place, content = 0, io.BytesIO()
    while place < len(whole):
        (length,) = struct.unpack("<Q", whole[place : place + 8])
        event = event_pb2.Event.FromString(whole[place + 12 : place + 12 + length])
        for value in event.summary.value:
            blobs = [damaged(chance, blob) if chance.random() < 0.5 else blob for blob in value.tensor.string_val]
            if blobs and chance.random() < 0.2:
                value.tensor.tensor_shape.dim[0].size = chance.choice((-1, 0, 1, 2, 5, 10**6, 2**62))
            value.tensor.string_val[:] = blobs
        RecordWriter(content).write(event.SerializeToString())
        place += length + 16
    return content.getvalue()


@pytest.mark.parametrize("damage", [damaged, rechecked])
@few_and_many(20, 1000, 2)
def test_damaged_event_files(tmp_path: Path, damage: Callable, count: int, seed: int) -> None:
    with SummaryWriter(str(tmp_path / "good")) as writer:
        for step in range(3):
            add_maps(writer, "cross/example_1", items(step), step)
            writer.add_scalar("loss", 1.0 / (step + 1), step)
    (good,) = (tmp_path / "good").iterdir()
    chance, asked = random.Random(seed), Asked()
    for number in range(count):
        look(tmp_path / str(number), damage(chance, good.read_bytes()), asked, f"{number} of seed {seed}")
    asked.check()
    assert asked.came[FINE] > count


WHOLE: dict[str, Callable[[], bytes]] = {
    "text": lambda: b"one line of text, and more of it\n" * 40,
    "json lines": lambda: b'{"text": "one line of text, and more of it"}\n' * 40,
    "json": lambda: b'[{"text": "one line of text, and more of it"}]',
    "csv": lambda: b"text,other\n" + b'"one line, of ""text""",2\n' * 40,
    "tsv": lambda: b"text\tother\n" + b"one line of text\t2\n" * 40,
    "parquet": lambda: parquet([{"text": "one line of text, and more of it"}] * 40),
    "gzip": lambda: gzip.compress(b"one line of text, and more of it\n" * 40),
    "nothing": lambda: b"",
    "zero bytes": lambda: bytes(300),
    "CRLF": lambda: b"one line\r\nanother\r\rthird\n\r" * 30,
    "no line break": lambda: b"one line of text " * 1000,
    "a mark in front": lambda: b"\xef\xbb\xbf" + b"one line of text\n" * 40,
    "UTF-16": lambda: ("one line of text\n" * 40).encode("utf-16"),
    "a lone surrogate": lambda: b"text \xed\xa0\x80 text" * 20,
    "one in JSON": lambda: b'{"text": "\\ud800 is half a character, alone"}\n' * 20,
    "no text": lambda: b'{"text": null}\n{"text": 3}\n{"text": {"a": []}}\n',
    "another column": lambda: b'{"body": "x"}\n' * 20,
    "rows of other kinds": lambda: b'{"text": "x"}\n[1]\n"text"\n3\n',
    "deep": lambda: b"[" * 50_000,
    "special tokens": lambda: b"<pad><bos><eos><sep><unk><mask> and text\n" * 30,
    "markup": lambda: b"<script>alert(1)</script>{{7*7}}${HOME}%s\x1b[2J\n" * 30,
    "one character": lambda: b"x",
    "emoji": lambda: "👩‍👩‍👧‍👦 \u202e\u0000\ufeff".encode() * 50,
}


def use(path: Path, tokenizer: str, documents: str) -> None:
    sizes = {"block": 4, "batch_size": 2, "validation_size": 2}
    task: Any = TASKS["text"](path=str(path), tokenizer={"name": tokenizer}, documents=documents, **sizes)
    ids = task.batch(generator(1), 2).ids
    assert ids.shape == (2, 5)
    task.vocabulary.decode(ids[0].tolist())
    task.examples("validation", 2)


@pytest.mark.parametrize("ending", [".txt", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".gz", ""])
@few_and_many(2, 6, 3)
def test_any_file_is_read_or_refused(tmp_path: Path, ending: str, count: int, seed: int) -> None:
    """Whole under every ending, and damaged or read in other ways."""
    chance, asked = random.Random(seed), Asked()
    for number, (name, whole) in itertools.product(range(count), WHOLE.items()):
        path, content, how = tmp_path / f"{name} {number}{ending}", whole(), ("char", "auto")
        if number:
            content = damaged(chance, content) if chance.random() < 0.6 else content
            how = chance.choice(("char", "byte", "word")), chance.choice(("auto", "line", "row", "paragraph"))
        path.write_bytes(content)
        asked.call(lambda: use(path, *how), f"{number} of seed {seed}: {name} as {ending}, {how}")  # noqa: B023
    asked.check()


def test_parallel_text_is_read_or_refused(tmp_path: Path) -> None:
    asked = Asked()
    (tmp_path / "train.en").write_bytes(b"one line of text\n" * 40)
    for name in ("held_out.en", "held_out.de"):
        (tmp_path / name).write_bytes(b"another line\n")

    def read(training: str) -> None:
        held_out = {"validation": "held_out", "test": "held_out"}
        TASKS["translation"](path=str(tmp_path), training=training, **held_out, batch_size=2).batch(generator(1), 2)

    for side in ("train.de", "train.tsv", "train.csv", "train.jsonl"):
        for name, whole in WHOLE.items():
            (tmp_path / side).write_bytes(whole())
            asked.call(lambda: read(side.removesuffix(".de")), f"{name} as {side}")  # noqa: B023
    asked.check()
