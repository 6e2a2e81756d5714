"""Tables and head statistics in event files, as TensorBoard's own readers find them."""

import html
import re
import string
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.util import tensor_util
from torch.utils.tensorboard import SummaryWriter

from minitx.tensorboard import writer as event_writer
from minitx.tensorboard.events import EventFile
from minitx.tensorboard.map_format import Statistic, strongest
from minitx.tensorboard.writer import UNSHOWN, add_heads, add_maps, heads, heads_table, markdown_table


@pytest.mark.parametrize(
    "text",
    ["3 1 4", "<b>", "a | b", "x\ny", "a\rb", "one\r\ntwo", "&lt;", "# no heading", "1. no list", "http://example.org",
     "*a* and **b**", "def __init__(self, *args, **kwargs):\n    return self", "`x`", "a\\*b",
     "[here](http://example.org)", "![picture](http://example.org/x.png)", string.punctuation, "a\0b\u202ec\u2067"],
)  # fmt: skip
def test_tensorboard_shows_the_text(text: str) -> None:
    page = markdown_to_safe_html(markdown_table(["question", "answer"], [[text, "beside it"]]))  # as its text tab does
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    # A browser shows one of several spaces, but all that are to be kept.
    seen = re.sub(" +", " ", html.unescape(re.sub(r"<[^>]*>", "", body.replace("<br>", "\n")))).replace("\xa0", " ")
    shown = UNSHOWN.sub(lambda found: ascii(found[0])[1:-1], text)
    assert [line for line in seen.split("\n") if line] == [*shown.splitlines(), "beside it"]
    assert not {*body} & {*"\0\u202e\u2067"}
    assert {*re.findall(r"<(\w+)", body)} <= {"tr", "td", "code", "br"}
    assert body.count("<tr>") == 1


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
    cross = [*statistic([[0.49, 0.5], [None]]), *statistic([[0.9] * 2, [0.1234]], "entropy")]
    found = heads({"encoder": statistic([[0.25]]), "cross": cross})
    assert found == [
        {"kind": "encoder", "layer": 1, "head": 1, "figures": {"diagonal": 0.25}, "pattern": None},
        {"kind": "cross", "layer": 1, "head": 1, "figures": {"diagonal": 0.49, "entropy": 0.9}, "pattern": None},
        {"kind": "cross", "layer": 1, "head": 2, "figures": {"diagonal": 0.5, "entropy": 0.9}, "pattern": "diagonal"},
        {"kind": "cross", "layer": 2, "head": 1, "figures": {"entropy": 0.1234}, "pattern": None},
    ]
    assert strongest(cross) == [[None, ("diagonal", 0.5)], [None]], "entropy is no pattern"
    assert strongest([]) == []
    table = re.sub(r"</?code>", "", heads_table(found)).replace("&#46;", ".")
    cells = [[cell.strip() for cell in line[2:-2].split("|")] for line in table.splitlines()]
    assert cells[0] == ["layer.head", "pattern", "diagonal", "entropy"]
    assert cells[4:] == [["cross 1.2", "diagonal", "0.50", "0.90"], ["cross 2.1", "", "", "0.12"]]


def test_many_heads_have_one_curve(tmp_path: Path) -> None:
    row: list[float | None] = [0.25] * event_writer.MAX_HEAD_CURVES
    assert len(scalars(tmp_path / "few", {"cross": statistic([[None, *row[1:]]])})) == len(row) - 1
    many = {"cross": statistic([row, [0.75]]), "decoder": statistic([row, [0.9]], "entropy")}
    mean = pytest.approx((len(row) * 0.25 + 0.9) / (len(row) + 1))
    expected = {"validation_heads_cross/diagonal/highest": 0.75, "validation_heads_decoder/entropy/mean": mean}
    assert (scalars(tmp_path / "many", many), scalars(tmp_path / "none", {})) == (expected, {})


@pytest.mark.parametrize("size", [1, 30, 700, 3000])
def test_events_are_written_before_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("minitx.tensorboard.events.FLUSH_BYTES", 200)
    monkeypatch.setattr("minitx.tensorboard.events.MAX_WAITING_BYTES", 2000)
    (tmp_path / "events.out.tfevents.12ab.x").touch()  # not by this writer
    file = EventFile(tmp_path)
    for step in range(30):
        add_maps(file, "cross/x", [bytes(size)], step)
        assert file._size <= 200 + 100
    file.close()
    assert [event.step for event in EventFileLoader(str(file.path)).Load() if event.summary.value] == [*range(30)]
