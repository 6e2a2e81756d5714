"""Damaged and hostile event files: TensorBoard and the Attention tab still answer."""

import io
import itertools
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from asking import FINE, REFUSED, Asked, few_and_many
from hostile import damaged
from tensorboard.compat.proto import event_pb2
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter

from minitx.tensorboard.writer import add_maps
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
