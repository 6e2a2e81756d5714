"""Images, attention maps and tables for event files, without matplotlib or a second encoding.

A writer is a torch.utils.tensorboard.SummaryWriter.
"""

import io
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorboard.compat.proto.summary_pb2 import DataClass, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DataType

from minitx.tensorboard import NAME


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


def add_maps(writer: Any, tag: str, items: Sequence[bytes], step: int) -> None:
    """Write attention maps for the Attention tab: one event, which a data server returns item by item.

    The tag is kind/example, such as cross/example_1; the items, a header and maps, come from map_format.encode.
    """
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(items))])
    blobs = TensorProto(dtype=DataType.DT_STRING, tensor_shape=shape, string_val=items)
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


UNSHOWN = re.compile("[\0\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""A zero character, which HTML cannot represent, and those of direction, which reorder what is around them."""


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
