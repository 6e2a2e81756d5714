"""What training writes for the Attention tab and about its heads, as TensorBoard's own reader finds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.summary_pb2 import DataClass
from tensorboard.util import tensor_util
from torch.utils.tensorboard import SummaryWriter

from minitx.tensorboard import NAME
from minitx.tensorboard.format import Statistic, decode, encode, read_header
from minitx.tensorboard.heads import SHOWN_ONE_BY_ONE, Head, add_heads, heads, heads_json, heads_table
from minitx.tensorboard.writer import add_maps


def events(folder: Path, use: Callable[[SummaryWriter], None]) -> list[Any]:
    """Every event with a summary in the one file that there is."""
    with SummaryWriter(str(folder)) as writer:
        use(writer)
    (file,) = folder.iterdir()
    return [event for event in EventFileLoader(str(file)).Load() if event.HasField("summary")]


def items(kind: str = "cross", values: list[list[float | None]] | None = None, pattern: bool = True) -> list[bytes]:
    values = [[0.5, 0.25], [1.0]] if values is None else values
    layers = [np.random.default_rng(len(row)).random((len(row), 2, 3)) for row in values]
    return encode(kind, ["a", "b"], ["x", "y", "z"], layers, [Statistic("diagonal", "told", pattern, values)])


def test_one_event_holds_all_of_a_kind(tmp_path: Path) -> None:
    (event,) = events(tmp_path, lambda writer: add_maps(writer, "cross/example_1", items(), 7))
    assert event.step == 7
    (value,) = event.summary.value
    assert value.tag == "cross/example_1"
    assert value.metadata.plugin_data.plugin_name == NAME == "minitx"
    assert value.metadata.data_class == DataClass.DATA_CLASS_BLOB_SEQUENCE
    blobs = tensor_util.make_ndarray(value.tensor)
    assert blobs.shape == (3,)
    assert blobs.tolist() == items()
    assert decode(blobs.tolist())[0]["heads"] == [2, 1]


def test_maps_stand_in_the_writers_own_file_in_order(tmp_path: Path) -> None:
    def use(writer: SummaryWriter) -> None:
        for step in (1, 2):
            writer.add_scalar("loss", 1.0, step)
            add_maps(writer, "cross/a", items(), step)
            add_maps(writer, "encoder/a", items("encoder"), step)

    found = [(event.step, event.summary.value[0].tag) for event in events(tmp_path, use)]
    assert found == [(step, tag) for step in (1, 2) for tag in ("loss", "cross/a", "encoder/a")]


# ---- heads -----------------------------------------------------------------------------------------------------------


def header(kind: str, values: list[list[float | None]], pattern: bool = True) -> dict[str, Any]:
    told = read_header(items(kind, values, pattern)[0])
    if not pattern:
        told["statistics"][0]["name"] = "entropy"
    return told


def test_figures_are_means_over_the_examples_that_have_one() -> None:
    found = heads([header("cross", [[0.2, None], [None]]), header("cross", [[0.6, 0.5], [None]])])
    assert [(head.kind, head.layer, head.head) for head in found] == [("cross", 1, 1), ("cross", 1, 2), ("cross", 2, 1)]
    assert [head.figures for head in found] == [{"diagonal": pytest.approx(0.4)}, {"diagonal": 0.5}, {}]
    assert [head.strongest for head in found] == ["diagonal", "diagonal", None]


def test_kinds_stay_apart() -> None:
    found = heads([header("encoder", [[0.25]]), header("cross", [[0.75]]), header("encoder", [[0.5]])])
    assert {head.kind: head.figures["diagonal"] for head in found} == {"encoder": 0.375, "cross": 0.75}


def test_what_names_no_pattern_is_not_the_strongest() -> None:
    (head,) = heads([header("encoder", [[0.75]], pattern=False)])
    assert head.figures == {"entropy": 0.75}
    assert head.strongest is None
    both = Head("cross", 1, 1, {"entropy": 0.9, "first": 0.3, "diagonal": 0.4}, {"first": 0.3, "diagonal": 0.4})
    assert both.strongest == "diagonal"


def scalars(folder: Path, found: list[Head]) -> dict[str, float]:
    written = events(folder, lambda writer: add_heads(writer, found, 5))
    assert len(written) <= 1, "an event costs more than a value in it"
    return {value.tag: tensor_util.make_ndarray(value.tensor).item() for one in written for value in one.summary.value}


def test_few_heads_have_curves_of_their_own(tmp_path: Path) -> None:
    found = heads([header("cross", [[0.5, None], [0.75]]), header("encoder", [[0.25]], pattern=False)])
    assert scalars(tmp_path, found) == {
        "heads_cross/diagonal/layer_1.head_1": 0.5,
        "heads_cross/diagonal/layer_2.head_1": 0.75,
        "heads_encoder/entropy/layer_1.head_1": 0.25,
    }


def test_of_many_heads_the_strongest_has_a_curve(tmp_path: Path) -> None:
    row: list[float | None] = [0.25] * SHOWN_ONE_BY_ONE
    assert len(scalars(tmp_path / "few", heads([header("cross", [row])]))) == SHOWN_ONE_BY_ONE
    many = heads([header("cross", [row, [0.75]]), header("decoder", [row, [0.9]], pattern=False)])
    assert scalars(tmp_path / "many", many) == {
        "heads_cross/diagonal/highest": 0.75,
        "heads_decoder/entropy/mean": pytest.approx((SHOWN_ONE_BY_ONE * 0.25 + 0.9) / (SHOWN_ONE_BY_ONE + 1)),
    }


def test_nothing_to_say_writes_nothing(tmp_path: Path) -> None:
    assert scalars(tmp_path, heads([header("cross", [[None]])])) == {}


def test_the_table_tells_each_head_by_its_strongest_pattern() -> None:
    found = [
        Head("cross", 2, 1, {"entropy": 0.125, "diagonal": 0.9}, {"diagonal": 0.9}),
        Head("decoder", 1, 2, {"entropy": 1.0}, {}),
    ]
    said = [[cell.strip() for cell in line.strip("| ").split("|")] for line in heads_table(found).splitlines()]
    plain = [[cell.replace("<code>", "").replace("</code>", "") for cell in row] for row in said]
    assert plain[0] == ["layer.head", "strongest pattern", "entropy", "diagonal"]
    assert [cell.replace("&#46;", ".") for cell in plain[2]] == ["cross 2.1", "diagonal", "0.12", "0.90"]
    assert [cell.replace("&#46;", ".") for cell in plain[3]] == ["decoder 1.2", "", "1.00", ""]


def test_the_same_as_json() -> None:
    found = [
        Head("cross", 2, 1, {"entropy": 0.123456, "diagonal": 0.9}, {"diagonal": 0.9}),
        Head("cross", 2, 2, {}, {}),
    ]
    assert heads_json(found) == [
        {
            "kind": "cross",
            "layer": 2,
            "head": 1,
            "strongest": "diagonal",
            "figures": {"entropy": 0.1235, "diagonal": 0.9},
        },
        {"kind": "cross", "layer": 2, "head": 2, "strongest": None, "figures": {}},
    ]
