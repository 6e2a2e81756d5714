"""The format of attention maps: round trips, and errors for damaged bytes."""

import gzip
import json
import math
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reading import items, with_header

from decoded_maps import decode
from minitx.interpret.head_statistics import head_statistics
from minitx.interpret.recording import Map
from minitx.tensorboard.map_format import MAX_LABEL_LENGTH, encode, read_header, unpacked_pieces

STEP = 1 / 255
weights = arrays.arrays(np.float32, st.tuples(*[st.integers(1, 4)] * 3), elements=st.floats(0, 1, width=32))


@given(weights)
def test_weights_keep_their_order_and_small_ones_their_precision(layer: np.ndarray) -> None:
    """The error is half a step of the root: at most the root of the weight times a step. Zero and one are exact."""
    layer.flat[0] = round(float(layer.flat[0]))
    header, (decoded,) = decode(encode("cross", *([None] * size for size in layer.shape[1:]), [layer]))
    assert (header["heads"], decoded.shape) == ([len(layer)], layer.shape)
    assert (np.abs(decoded - layer) <= np.sqrt(layer) * STEP + (STEP / 2) ** 2 + 1e-6).all()
    assert (np.diff(decoded.ravel()[np.argsort(layer, axis=None)]) >= 0).all()
    assert decoded.flat[0] == layer.flat[0]


@given(st.lists(st.none() | st.text(st.characters(), max_size=5), min_size=1, max_size=4))
@example(["<script>", "\u202eabc", "👩‍👩‍👧", "\ud800", "\0", ""])
def test_any_text_is_a_label(queries: list[str | None]) -> None:
    items = encode("decoder", queries, queries, [np.zeros((1, len(queries), len(queries)))])
    assert items[0].isascii()
    header, _ = decode(items)
    assert header["queries"] == header["keys"] == queries


@pytest.mark.parametrize("length", [MAX_LABEL_LENGTH, MAX_LABEL_LENGTH + 1, 10_000])
def test_labels_are_cut_when_written_and_when_read(length: int) -> None:
    first, _ = encode("encoder", ["x" * length], ["a"], [np.zeros((1, 1, 1))])
    (label,) = read_header(first)["queries"]
    assert (len(label), label.endswith("…")) == (MAX_LABEL_LENGTH, length > MAX_LABEL_LENGTH)
    (label,) = read_header(json.dumps({**json.loads(first), "keys": ["y" * length]}).encode())["keys"]
    assert len(label) == MAX_LABEL_LENGTH


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_diverged_model_is_still_logged(value: float) -> None:
    layer = np.full((1, 2, 2), value, dtype=np.float32)
    statistics = head_statistics([Map(torch.from_numpy(layer), ["a", "b"], ["a", "b"], "encoder")])
    header, (shown,) = decode(encode("encoder", ["a", "b"], ["a", "b"], [layer], statistics))
    assert {"entropy", "diagonal"} <= {part["name"] for part in header["statistics"]}
    assert all(part["values"] == [[None]] for part in header["statistics"] if part["name"] != "induction")
    assert ((shown >= 0) & (shown <= 1)).all()


def test_other_bytes_are_no_header_and_another_version_is_refused() -> None:
    long = (b"[" * 100_000, b'{"version":' + b"9" * 10_000 + b"}")
    for header in (b"", b"x", b"\xff", b"[]", b"7", b'"version"', b"{}", *long):
        with pytest.raises(ValueError, match="not an attention map of minitx"):
            read_header(header)
    for version in (0, 2, "1", None, [1], "x" * 10_000):
        with pytest.raises(ValueError, match="must have format 1") as caught:
            read_header(with_header(version=version))
        assert (repr(version)[:20] in str(caught.value), len(str(caught.value)) < 120) == (True, True)


STATISTIC = {"name": "x", "meaning": "y", "pattern": True, "values": [[0, 0], [0]]}
DAMAGED: dict[str, list[Any]] = {
    "kind": ["sideways", ["cross"]], "queries": ["ab", ["a", 1]], "keys": [{"a": 1}],
    "heads": [2, [0, 1], [-2, 1], [2.0, 1], [True, 1], [2]],
    "extras": ["ab", [1]],
    "statistics": [
        {"name": 1}, [1], [{"name": "x"}],
        *([{**STATISTIC, **one}] for one in ({"name": 1}, {"meaning": None}, {"pattern": 1}, {"values": None})),
        *([{**STATISTIC, "values": values}] for values in ([[0, 0]], [[0], [0, 0]], [[0, 0], "0"])),
        *([{**STATISTIC, "values": [[0, value], [0]]}] for value in ("0", True, math.nan, math.inf, 10**400)),
    ],
}  # fmt: skip


def test_a_damaged_header_is_refused() -> None:
    assert read_header(with_header(statistics=[STATISTIC]))
    for separator in (None, "", " "):
        first, _ = encode("cross", ["a"], ["a"], [np.zeros((1, 1, 1))], separator=separator)
        assert read_header(first).get("separator") == separator
    for key, values in {**DAMAGED, "separator": ["x", 1, [""]]}.items():
        for value in [None][key == "separator" :] + values:  # None removes the key
            with pytest.raises(ValueError, match="header of these attention maps is damaged"):
                read_header(with_header(**{key: value}))


PACKED = items()[1]
PLAIN = gzip.decompress(PACKED)


def test_a_damaged_map_is_refused() -> None:
    damaged: list[Any] = [b"", PACKED[:-1], PACKED + b"\0", PACKED * 2, PLAIN, zlib.compress(PLAIN), None]
    for item in (*damaged, gzip.compress(PLAIN[:-1]), gzip.compress(PLAIN + b"\0")):
        with pytest.raises(ValueError, match="this attention map is damaged"):
            list(unpacked_pieces(item, (2, 3, 4)))


def test_a_bomb_is_not_unpacked() -> None:
    """A map takes no more memory than the shape in its header, which is limited."""
    bomb = gzip.compress(bytes(2**26))
    tracemalloc.start()
    with pytest.raises(ValueError, match="does not hold the 24 weights"):
        list(unpacked_pieces(bomb, (2, 3, 4)))
    assert tracemalloc.get_traced_memory()[1] < 2**22, "a map of 64 MiB, packed into 64 KiB"
    tracemalloc.stop()
    with pytest.raises(ValueError, match="too large"):
        list(unpacked_pieces(PACKED, (2**10, 2**10, 2**10)))
