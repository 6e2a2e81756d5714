"""Images, attention maps, head statistics and tables for event files, without matplotlib or a second encoding.

No torch here. A writer is torch's SummaryWriter or an EventFile.
"""

import hashlib
import io
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypedDict

import numpy as np
from tensorboard.compat.proto.summary_pb2 import DataClass, Summary, SummaryMetadata
from tensorboard.util.tensor_util import make_tensor_proto

from minitx.tensorboard import NAME
from minitx.tensorboard.map_format import Statistic, strongest

MAX_HEAD_CURVES = 64
"""Heads of one kind with a curve each; with more heads, only the highest value or the mean has a curve."""
MAX_NAME_CHARACTERS = 60
"""Maximum length of the name of an example in tags."""


def add_values(writer: Any, values: Iterable[Summary.Value], step: int | None) -> None:
    """Write values as one event."""
    writer._get_file_writer().add_summary(Summary(value=values), step)


def add_attention(writer: Any, pictures: Iterable[tuple[str, int, Any]], example: str, step: int) -> None:
    """Write images.pictures as PNGs under the name of an example."""
    for kind, layer, image in pictures:
        png = io.BytesIO()
        image.save(png, format="PNG")
        summary = Summary.Image(
            height=image.height, width=image.width, colorspace=3, encoded_image_string=png.getvalue()
        )
        add_values(writer, [Summary.Value(tag=f"attention_{kind}/layer_{layer}/{example}", image=summary)], step)


def example_name(text: str) -> str:
    """A text as the name of an example: a long one is cut, and a hash distinguishes it from similar ones."""
    if len(text) <= MAX_NAME_CHARACTERS:
        return text
    return f"{text[: MAX_NAME_CHARACTERS - 9]} {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def add_maps(writer: Any, tag: str, items: Sequence[bytes], step: int) -> None:
    """Write attention maps for the Attention tab: one event, which a data server returns item by item.

    The tag is kind/example, such as cross/example_1; the items, a header and maps, come from map_format.encode.
    """
    blobs = make_tensor_proto(np.array(items, dtype=object))
    plugin = SummaryMetadata.PluginData(plugin_name=NAME)
    about = SummaryMetadata(plugin_data=plugin, data_class=DataClass.DATA_CLASS_BLOB_SEQUENCE)
    add_values(writer, [Summary.Value(tag=tag, metadata=about, tensor=blobs)], step)


def add_hyperparameters(writer: Any, values: Mapping[str, bool | int | float | str]) -> None:
    """Make the run a row of TensorBoard's HPARAMS, which has its scalars too."""
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2, summary_v2

    ended = plugin_data_pb2.HParamsPluginData(session_end_info=plugin_data_pb2.SessionEndInfo(status="STATUS_SUCCESS"))
    end = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=metadata.create_summary_metadata(ended))
    for parts in (summary_v2.hparams_pb(dict(values), trial_id=writer.get_logdir()).value, [end]):
        add_values(writer, parts, None)


class HeadEntry(TypedDict):
    """One head, over the logged examples; an entry of heads.json in a run's folder."""

    kind: str  # encoder, decoder or cross
    layer: int  # from 1
    head: int  # from 1
    figures: dict[str, float]  # by statistic, without undefined ones
    pattern: str | None  # that the head follows, if any


def heads(statistics: Mapping[str, Sequence[Statistic]]) -> list[HeadEntry]:
    """Rearrange the statistics of each kind of attention by head."""
    return [
        {
            "kind": kind, "layer": layer + 1, "head": head + 1,
            "figures": {part.name: value for part in parts if (value := part.values[layer][head]) is not None},
            "pattern": named.pattern if named else None,
        }
        for kind, parts in statistics.items()
        for layer, row in enumerate(strongest(parts))
        for head, named in enumerate(row)
    ]  # fmt: skip


def add_heads(writer: Any, statistics: Mapping[str, Sequence[Statistic]], step: int) -> None:
    """Write head statistics as scalars, all in one event.

    Every head has a curve, validation_heads_cross/antidiagonal/layer_1.head_2, up to MAX_HEAD_CURVES of its kind; with
    more heads, each pattern has a curve of its highest value, each other statistic one of its mean. The name follows
    those of the training and validation curves in alphabetical order, which is that of TensorBoard.
    """
    scalars: dict[str, float] = {}
    for kind, parts in statistics.items():
        for part in parts:
            tag = f"validation_heads_{kind}/{part.name}"
            curves = {
                f"{tag}/layer_{layer}.head_{head}": value
                for layer, values in enumerate(part.values, start=1)
                for head, value in enumerate(values, start=1)
                if value is not None
            }
            if sum(map(len, part.values)) <= MAX_HEAD_CURVES:
                scalars |= curves
            elif curves:
                name, summary = ("highest", max) if part.pattern else ("mean", fmean)
                scalars[f"{tag}/{name}"] = summary(curves.values())
    if scalars:
        add_values(writer, [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()], step)


def heads_table(found: Sequence[HeadEntry]) -> str:
    """Every head with its pattern and all its statistics, in Markdown for TensorBoard's text tab."""
    names = list(dict.fromkeys(name for head in found for name in head["figures"]))
    rows = []
    for head in found:
        values = [f"{head['figures'][name]:.2f}" if name in head["figures"] else "" for name in names]
        rows.append([f"{head['kind']} {head['layer']}.{head['head']}", head["pattern"] or "", *values])
    return markdown_table(["layer.head", "pattern", *names], rows)


UNSHOWN = re.compile("[\0\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""The zero character, which HTML cannot represent, and direction characters, which reorder the text around them."""


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for TensorBoard's text tab, each cell as code, none of it as markup."""
    lines = [header, ["---"] * len(header), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Escape text: every character that HTML or Markdown may interpret becomes a character reference."""
    special = string.punctuation + "\r\n\t"
    text = UNSHOWN.sub(lambda found: ascii(found[0])[1:-1], text)
    escaped = "".join(f"&#{ord(char)};" if char in special else char for char in text)
    lines = re.sub(r"&#13;&#10;|&#13;|&#10;", "<br>", escaped)
    return f"<code>{lines.replace('  ', '&#160; ')}</code>"
