"""The server side of the Attention tab: its routes, and untrusted event files."""

import gzip
import itertools
import json
import re
import subprocess
import sys
import tracemalloc
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from reading import Board, items, layers, with_header
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.compat.proto.summary_pb2 import DataClass, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DataType
from torch.utils.tensorboard import SummaryWriter

from minitx.tensorboard import plugin
from minitx.tensorboard.events import EventFile
from minitx.tensorboard.map_format import MAX_HEADER_BYTES, MAX_LABELS, MAX_MAPS, read_header, unpacked_pieces
from minitx.tensorboard.plugin_loader import STEPS, AttentionLoader
from minitx.tensorboard.writer import add_maps

PLACE = {"run": "one", "tag": "cross/example_1", "step": 3}


def log(folder: Path, events: dict[int, list[bytes]]) -> None:
    """Write events of the tag of PLACE, by step."""
    with SummaryWriter(str(folder)) as writer:
        for step, parts in events.items():
            add_maps(writer, PLACE["tag"], parts, step)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """One event in one run."""
    log(tmp_path / "one", {3: items()})
    return Board(tmp_path)


def test_each_place_has_its_own_maps(tmp_path: Path) -> None:
    """Also where a file repeats the last step of the one before, which is listed once."""
    every_tag = ("cross/9", "cross/10", "cross/<b>\u202e\nשלום")
    places = [(run, tag, step) for run in ("a", "b/c") for tag in every_tag for step in (200, 1000)]
    for run, steps in itertools.product(("a", "b/c", "without"), ((200,), (200, 1000))):
        with SummaryWriter(str(tmp_path / run), filename_suffix=f".{len(steps)}") as writer:
            writer.add_scalar("loss", 1.0, 5)
            for number, (other, tag, step) in enumerate(places):
                if run == other and step in steps:
                    add_maps(writer, tag, items(number), step)
    board, tags = Board(tmp_path), {tag: [200, 1000] for tag in every_tag}  # in the order of numbers, not of digits
    assert (board.runs, [*board.runs["a"]]) == ({"a": tags, "b/c": tags}, [*every_tag])
    for _ in range(2):  # from the files, then from the cache
        for number, (run, tag, step) in enumerate(places):
            assert board.json("/header", run=run, tag=tag, step=step) == json.loads(items(number)[0])
            _, maps = board.maps(run=run, tag=tag, step=step)
            for decoded, exact in zip(maps, [*layers(number), np.full((1, 3, 4), 0.25)], strict=True):
                assert np.abs(decoded - exact).max() <= 1 / 255


def test_the_user_may_set_the_number_of_steps() -> None:
    for given in (None, {}, {"images": 3}, {"minitx": 5}, {"minitx": 0}):
        flags = Namespace(samples_per_plugin=given)
        AttentionLoader().fix_flags(flags)
        assert flags.samples_per_plugin == {"minitx": STEPS, **(given or {})}


def test_unchanged_series_are_read_once(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    began = board.json("/index")["began"]
    board.maps(**PLACE)
    read: list[str] = []
    real = plugin.AttentionPlugin._read
    monkeypatch.setattr(plugin.AttentionPlugin, "_read", lambda *given: read.append(given[-1]) or real(*given))
    assert board.runs
    board.maps(**PLACE)
    assert read == []
    file = EventFile(board.folder / "one")  # read last: torch's of one second are in the order of their numbers as text
    add_maps(file, "cross/example_2", items(), 3)
    file.flush()
    board.reload()
    assert (len(board.runs["one"]), read) == (2, ["cross/example_2"])
    add_maps(file, "cross/example_1", items(), 4)
    file.close()
    board.reload()
    board.maps(**{**PLACE, "step": 4})
    assert read == ["cross/example_2", "cross/example_1"]
    assert board.json("/index")["began"]["one"] == began["one"] > 1e9, "the time of the first maps"


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    *(({name: None}, f"parameter {name} is missing") for name in PLACE), ({"step": 4}, "at step 4"),
    ({"run": "two"}, "there is no attention map 'cross/example_1' of run 'two' at step 3"),
    *((place, "there is no attention map") for place in ({"tag": "x" * 10_000}, {"tag": "\ud800"}, {"step": 10**30})),
    *(({"step": step}, f"step must be a whole number, got '{step[:3]}") for step in ("x" * 9_999, "9" * 9_999, "1.5")),
]  # fmt: skip


def test_unknown_places_and_items_are_refused(board: Board) -> None:
    for changed, sentence in UNKNOWN:
        place = {key: value for key, value in {**PLACE, **changed}.items() if value is not None}
        place = {key: v.encode(errors="surrogatepass") if isinstance(v, str) else v for key, v in place.items()}
        assert sentence in board.refusal("/header", **place)
        assert sentence in board.refusal("/map", **place, item=0)
    assert "parameter item is missing" in board.refusal("/map", **PLACE)
    assert "item must be a whole number, got 'x'" in board.refusal("/map", **PLACE, item="x")
    for item in (-1, 3, 10**30):
        sentence = f"item must be from 0 to below 3, the number of maps, got {item}"
        assert sentence in board.refusal("/map", **PLACE, item=item)


def event(tag: str, tensor: TensorProto, plugin: str = "minitx", data_class: int = 3) -> Summary:
    about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin), data_class=data_class)
    return Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=tensor)])


def shaped(*shape: int) -> TensorShapeProto:
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in shape])


def strings(values: list[bytes], *shape: int) -> TensorProto:
    return TensorProto(dtype=DataType.DT_STRING, tensor_shape=shaped(*shape), string_val=values)


HEADER, *MAPS = items()
TOO_MANY = with_header(heads=[1] * MAX_MAPS, statistics=[], extras=["a"])
FOREIGN: dict[str, tuple[TensorProto, str]] = {
    "floats": (TensorProto(dtype=DataType.DT_FLOAT, tensor_shape=shaped(4), float_val=[0.5] * 4), "no bytes"),
    "one string": (strings([b"x"]), "could not read"), "two dimensions": (strings(items(), 2, 2), "no bytes"),
    "too few strings": (strings([b"x"], 4), ""), "no strings": (strings([], 0), "0 items"),
    "a negative size": (strings([b"x"], -3), "0 items"), "a huge size": (strings([b"x"], 10**12), "10{12} items"),
    "an unknown type": (TensorProto(dtype=99, tensor_shape=TensorShapeProto(dim=[{"size": 2}])), "could not read"),
    "too many labels": (strings([with_header(queries=[""] * (MAX_LABELS + 1)), *MAPS], 4), "header .* is damaged"),
    "too many maps": (strings([TOO_MANY, *MAPS], 4), "header .* is damaged"),
    "a large header": (strings([with_header(more=" " * MAX_HEADER_BYTES), *MAPS], 4), "header .* is too large"),
}  # fmt: skip


def test_foreign_events_are_refused_and_other_data_is_not_listed(tmp_path: Path) -> None:
    others = [
        event("cross/another plugin", strings(items(), 4), plugin="images"),
        event("cross/another class", strings(items(), 4), data_class=DataClass.DATA_CLASS_TENSOR),
        Summary(value=[Summary.Value(tag="cross/no tensor", simple_value=1.0)]),
    ]
    with SummaryWriter(str(tmp_path)) as writer:
        for summary in [*others, *(event(f"cross/{name}", tensor) for name, (tensor, _) in FOREIGN.items())]:
            writer._get_file_writer().add_summary(summary, 1)
        add_maps(writer, "cross/ours", items(), 1)
    board, sentences = Board(tmp_path), {summary.value[0].tag: "no attention map" for summary in others}
    assert not sentences.keys() & board.runs["."].keys()
    sentences |= {f"cross/{name}": sentence for name, (_, sentence) in FOREIGN.items()}
    for tag, sentence in sentences.items():
        place = {"run": ".", "tag": tag, "step": 1}
        assert re.search(sentence, board.refusal("/header", **place)), tag
        board.refusal("/map", **place, item=0)
    board.maps(run=".", tag="cross/ours", step=1)


def test_maps_that_do_not_fit_their_header_are_refused(tmp_path: Path) -> None:
    one_layer = [with_header(heads=[2], statistics=[], extras=[]), *MAPS]
    log(tmp_path / "one", {3: [HEADER, MAPS[0], MAPS[0], MAPS[2]], 4: one_layer})
    board = Board(tmp_path)
    assert "map is damaged: it does not hold the 12 weights" in board.refusal("/map", **PLACE, item=1)
    assert board.get("/map", **PLACE, item=0).data == MAPS[0], "the others are shown"
    assert "item must be from 0 to below 1" in board.refusal("/map", **{**PLACE, "step": 4}, item=1)


def test_concurrent_requests_share_what_is_checked_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, checked, sent = 4096, [], []
    labels, content = dict.fromkeys(("queries", "keys"), [None] * size), gzip.compress(bytes(size**2))
    log(tmp_path / "one", {3: [with_header(heads=[1, 1], statistics=[], extras=[], **labels), content, content]})
    board, packed = Board(tmp_path), plugin.AttentionPlugin._packed
    monkeypatch.setattr(plugin.AttentionPlugin, "_packed", lambda *given: sent.append(packed(*given)) or sent[-1])
    for name, check in (("unpacked_pieces", unpacked_pieces), ("read_header", read_header)):
        monkeypatch.setattr(plugin, name, lambda *given, check=check: checked.append(check) or check(*given))
    tracemalloc.start()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(board.get, "/map", **PLACE, item=n % 2) for n in range(8)]
        assert all(one.result().data == content for one in asked)
    assert tracemalloc.get_traced_memory()[1] < size**2, "less than one unpacked map"
    tracemalloc.stop()
    assert (checked, len({id(one) for one in sent})) == ([read_header, unpacked_pieces], 1)


def test_the_maps_used_last_are_kept_within_a_limit(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bytes] = []
    monkeypatch.setattr(plugin, "unpacked_pieces", lambda *given: checked.append(given[0]) or unpacked_pieces(*given))
    header, *maps = items()
    header_and_two = 3 * plugin.ENTRY_BYTES + plugin.PARSED_BYTES * len(header) + sum(map(len, maps[:2]))
    monkeypatch.setattr(plugin, "MAX_CHECKED_BYTES", header_and_two)
    for item in (0, 1, 0, 2, 0, 1):
        answer = board.get("/map", **PLACE, item=item)
        assert (answer.data, answer.headers["Content-Encoding"]) == (maps[item], "gzip")
    assert checked == [maps[0], maps[1], maps[2], maps[1]]


def test_a_failing_data_provider_is_a_sentence(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("list_blob_sequences", "read_blob_sequences", "read_blob"):
        with monkeypatch.context() as patched:
            patched.setattr(MultiplexerDataProvider, method, Mock(side_effect=MemoryError("with internal details")))
            assert "could not read" in Board(board.folder).refusal("/header", **PLACE)


def test_only_files_of_the_page_are_served(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "static"
    (folder / "below").mkdir(parents=True)
    for name in ("index.js", "style.css", "notes.txt", ".hidden.js", "below/inner.js"):
        (folder / name).write_text(f"// {name}")
    (tmp_path / "secret.js").write_text("secret")
    monkeypatch.setattr(plugin, "STATIC", folder)
    for name, kind in (("index.js", "text/javascript"), ("style.css", "text/css")):
        answer = board.get(f"/static/{name}", gzipped=False)
        assert (answer.status_code, answer.mimetype, answer.text) == (200, kind, f"// {name}")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for name in OUTSIDE:
        answer = board.get(f"/static/{name}", gzipped=False)
        leaked = "secret" in answer.text.replace(name, "").replace("secret.js", "")
        assert (answer.status_code, leaked) == (404, False), name


OUTSIDE = [
    "", "nothing.js", "notes.txt", "below", "below/inner.js", "below%2Finner.js", ".", "..", "../secret.js",
    "..%2Fsecret.js", "%2e%2e/secret.js", "..\\secret.js", "/etc/passwd", "index.js%00", "INDEX.JS", "index.js/",
    "x" * 9_000,
]  # fmt: skip


def test_tensorboard_lists_the_tab(board: Board, tmp_path: Path) -> None:
    listing = json.loads(board.client.get("/data/plugins_listing").data)["minitx"]
    assert (listing["enabled"], listing["tab_name"]) == (True, "Attention")
    assert listing["loading_mechanism"]["module_path"].endswith("/data/plugin/minitx/static/index.js")
    with SummaryWriter(str(tmp_path / "other/x")) as writer:
        writer.add_scalar("loss", 1.0, 5)
    assert json.loads(Board(tmp_path / "other").client.get("/data/plugins_listing").data)["minitx"]["enabled"] is False


def test_a_broken_plugin_disables_only_its_tab(tmp_path: Path) -> None:
    code = (
        "import sys, minitx.tensorboard.plugin_loader; sys.path.append('..')\n"
        "assert not {'numpy', 'torch', 'lightning', 'werkzeug', 'PIL'} & {*sys.modules}, 'it loads TensorBoard only'\n"
        "sys.modules['minitx.tensorboard.plugin'] = None; from pathlib import Path; from reading import Board\n"
        f"board = Board(Path({str(tmp_path)!r})); assert board.get('/index').status_code == 404\n"
        "assert board.client.get('/data/plugins_listing').status_code == 200\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "Failed to load plugin" in ran.stderr
