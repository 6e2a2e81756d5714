"""Head statistics: as entries, as a table, and in event files as TensorBoard's own reader finds them."""

import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util
from torch.utils.tensorboard import SummaryWriter

from minitx.tensorboard.head_figures import MAX_HEAD_CURVES, add_heads, heads, heads_table
from minitx.tensorboard.map_format import Statistic


def statistic(values: list[list[float | None]], name: str = "diagonal") -> list[Statistic]:
    return [Statistic(name, "meaning", name != "entropy", values)]


def scalars(folder: Path, statistics: dict[str, list[Statistic]]) -> dict[str, float]:
    """What add_heads writes, in one event: an event costs more than a value in it."""
    with SummaryWriter(str(folder)) as writer:
        add_heads(writer, statistics, 5)
    (file,) = folder.iterdir()
    written = [event.summary.value for event in EventFileLoader(str(file)).Load() if event.HasField("summary")]
    assert len(written) == bool(statistics)
    return {value.tag: tensor_util.make_ndarray(value.tensor).item() for values in written for value in values}


def test_heads_have_an_entry_and_a_row_each() -> None:
    """Few have a curve each: training/callbacks/test_log_attention.py."""
    statistics = {
        "encoder": statistic([[0.25]]),
        "cross": [*statistic([[0.4, 0.5], [None]]), *statistic([[0.9] * 2, [0.1234]], "entropy")],
    }
    found = heads(statistics)
    assert found == [
        {"kind": "encoder", "layer": 1, "head": 1, "figures": {"diagonal": 0.25}, "pattern": None},
        {"kind": "cross", "layer": 1, "head": 1, "figures": {"diagonal": 0.4, "entropy": 0.9}, "pattern": None},
        {"kind": "cross", "layer": 1, "head": 2, "figures": {"diagonal": 0.5, "entropy": 0.9}, "pattern": "diagonal"},
        {"kind": "cross", "layer": 2, "head": 1, "figures": {"entropy": 0.1234}, "pattern": None},
    ]
    table = re.sub(r"</?code>", "", heads_table(found)).replace("&#46;", ".")
    cells = [[cell.strip() for cell in line[2:-2].split("|")] for line in table.splitlines()]
    assert cells[0] == ["layer.head", "pattern", "diagonal", "entropy"]
    assert cells[4:] == [["cross 1.2", "diagonal", "0.50", "0.90"], ["cross 2.1", "", "", "0.12"]]


def test_many_heads_have_one_curve(tmp_path: Path) -> None:
    row: list[float | None] = [0.25] * MAX_HEAD_CURVES
    assert len(scalars(tmp_path / "few", {"cross": statistic([[None, *row[1:]]])})) == MAX_HEAD_CURVES - 1
    many = {"cross": statistic([row, [0.75]]), "decoder": statistic([row, [0.9]], "entropy")}
    assert scalars(tmp_path / "many", many) == {
        "validation_heads_cross/diagonal/highest": 0.75,
        "validation_heads_decoder/entropy/mean": pytest.approx((MAX_HEAD_CURVES * 0.25 + 0.9) / (MAX_HEAD_CURVES + 1)),
    }
    assert scalars(tmp_path / "none", {}) == {}
