from __future__ import annotations

import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from torch.utils.tensorboard import SummaryWriter

from minitx.interpret import images
from minitx.interpret.attention_maps import Picture
from minitx.tensorboard.writer import add_attention, add_picture, markdown_table


def written(folder: Path, use: Callable[[SummaryWriter], None]) -> EventAccumulator:
    """The events that TensorBoard reads."""
    with SummaryWriter(str(folder)) as writer:
        use(writer)
    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    return events


def decoded(event: object) -> np.ndarray:
    with Image.open(io.BytesIO(event.encoded_image_string)) as image:  # type: ignore[attr-defined]
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def picture(seed: int = 1) -> Image.Image:
    return images.heads(np.random.default_rng(seed).random((2, 3, 4)), ["a", "b", "c"], ["w", "x", "y", "z"])


@pytest.mark.parametrize("mode", ["P", "RGB", "L"])
def test_images_are_stored_pixel_by_pixel_for_each_step(tmp_path: Path, mode: str) -> None:
    def use(writer: SummaryWriter) -> None:
        for step in (0, 10):
            add_picture(writer, "group/name", picture(step).convert(mode), step)

    found = written(tmp_path, use).Images("group/name")
    assert [event.step for event in found] == [0, 10]
    for event in found:
        image = picture(event.step).convert(mode)
        assert (event.width, event.height) == image.size
        assert np.array_equal(decoded(event), np.asarray(image.convert("RGB")))


def test_attention_is_grouped_by_kind_layer_and_example(tmp_path: Path) -> None:
    pictures = [Picture("encoder", 1, picture(1)), Picture("encoder", 2, picture(2)), Picture("cross", 1, picture(3))]
    events = written(tmp_path, lambda writer: add_attention(writer, iter(pictures), "example_1", 5))
    assert set(events.Tags()["images"]) == {
        "attention_encoder/layer_1/example_1",
        "attention_encoder/layer_2/example_1",
        "attention_cross/layer_1/example_1",
    }
    for kind, layer, image in pictures:
        (event,) = events.Images(f"attention_{kind}/layer_{layer}/example_1")
        assert event.step == 5
        assert np.array_equal(decoded(event), np.asarray(image.convert("RGB")))


# ---- tables ----------------------------------------------------------------------------------------------------------


def rows(table: str) -> list[list[str]]:
    """A Markdown table's cells."""
    lines = table.split("\n")
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines)
    return [line[2:-2].split(" | ") for line in lines]


class Visible(HTMLParser):
    """The text that a browser shows, and the elements it would make."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.elements = "", set()
        self.feed(html)
        self.close()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.elements.add(tag)
        if tag == "br":
            self.text += "\n"


def plain(text: str) -> str:
    """Spaces that a browser keeps apart are spaces."""
    return text.replace("\xa0", " ")


def test_a_table_has_a_header_a_rule_and_rows() -> None:
    assert markdown_table(["question", "answer"], [["1 2", "2 1"], ["3", "3"]]).split("\n") == [
        "| question | answer |",
        "| --- | --- |",
        "| <code>1 2</code> | <code>2 1</code> |",
        "| <code>3</code> | <code>3</code> |",
    ]


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r\x00", exclude_categories=["Cs"]), max_size=12),
        min_size=1,
        max_size=4,
    )
)
def test_every_text_stays_in_its_cell(texts: list[str]) -> None:
    table = markdown_table(["column"] * len(texts), [texts])
    assert "|" not in re.sub(r"^\| | \| | \|$", "", table.split("\n")[2])
    cells = rows(table)[2]
    assert [plain(Visible(cell).text) for cell in cells] == [plain(text) for text in texts]


def test_the_null_character_is_escaped() -> None:
    assert Visible(rows(markdown_table(["column"], [["a\0b"]]))[2][0]).text == r"a\x00b"


@pytest.mark.parametrize(
    "text",
    [
        "3 1 4",
        "<b>",
        "a | b",
        "x\ny",
        "a\rb",
        "one\r\ntwo",
        "&lt;",
        "# no heading",
        "1. no list",
        "http://example.org",
        "*a* and **b**",
        "def __init__(self, *args, **kwargs):\n    return self",
        "`x`",
        "a\\*b",
        "[here](http://example.org)",
        "![picture](http://example.org/x.png)",
    ],
)
def test_tensorboard_shows_the_text(text: str) -> None:
    page = markdown_to_safe_html(markdown_table(["question", "answer"], [[text, "beside it"]]))  # as its text tab does
    shown = Visible(page.partition("<tbody>")[2])
    assert [line for line in plain(shown.text).split("\n") if line] == [*text.splitlines(), "beside it"]
    assert shown.elements <= {"tr", "td", "code", "br"}
    assert page.partition("<tbody>")[2].count("<tr>") == 1


def test_tensorboard_reads_the_table(tmp_path: Path) -> None:
    table = markdown_table(["column"], [["a|b"]])
    events = written(tmp_path, lambda writer: writer.add_text("answers", table, 3))
    (event,) = events.Tensors("answers/text_summary")
    assert event.tensor_proto.string_val[0].decode() == table
