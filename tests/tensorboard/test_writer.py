import html
import io
import re
import string
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from torch.utils.tensorboard import SummaryWriter

from minitx.interpret import images
from minitx.tensorboard.writer import UNSHOWN, add_attention, markdown_table


def test_attention_is_grouped_by_kind_layer_and_example_pixel_by_pixel(tmp_path: Path) -> None:
    weights = np.random.default_rng(1).random((3, 2, 3, 4))
    drawn = [images.heads(each, ["a", "b", "c"], ["w", "x", "y", "z"]) for each in weights]
    places = [("encoder", 1), ("encoder", 2), ("cross", 1)]
    with SummaryWriter(str(tmp_path)) as writer:
        for step in (0, 10):
            add_attention(writer, ((*place, image) for place, image in zip(places, drawn, strict=True)), "one", step)
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0})
    events.Reload()
    names = {f"attention_{kind}/layer_{layer}/one": image for (kind, layer), image in zip(places, drawn, strict=True)}
    assert set(events.Tags()["images"]) == names.keys()
    for name, image in names.items():
        assert [event.step for event in events.Images(name)] == [0, 10]
        for event in events.Images(name):
            assert (event.width, event.height) == image.size
            with Image.open(io.BytesIO(event.encoded_image_string)) as found:
                assert found.format == "PNG"
                assert np.array_equal(found.convert("RGB"), image.convert("RGB"))


def visible(markup: str) -> str:
    """The text that a browser shows: one of several spaces, but all that are to be kept."""
    text = html.unescape(re.sub(r"<[^>]*>", "", markup.replace("<br>", "\n")))
    return re.sub(" +", " ", text).replace("\xa0", " ")


@pytest.mark.parametrize(
    "text",
    ["3 1 4", "<b>", "a | b", "x\ny", "a\rb", "one\r\ntwo", "&lt;", "# no heading", "1. no list", "http://example.org",
     "*a* and **b**", "def __init__(self, *args, **kwargs):\n    return self", "`x`", "a\\*b",
     "[here](http://example.org)", "![picture](http://example.org/x.png)", string.punctuation, "a\0b\u202ec\u2067"],
)  # fmt: skip
def test_tensorboard_shows_the_text(text: str) -> None:
    page = markdown_to_safe_html(markdown_table(["question", "answer"], [[text, "beside it"]]))  # as its text tab does
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    shown = UNSHOWN.sub(lambda found: ascii(found[0])[1:-1], text)
    assert [line for line in visible(body).split("\n") if line] == [*shown.splitlines(), "beside it"]
    assert not {*body} & {*"\0\u202e\u2067"}
    assert {*re.findall(r"<(\w+)", body)} <= {"tr", "td", "code", "br"}
    assert body.count("<tr>") == 1
