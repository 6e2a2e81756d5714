"""The contents of the offline page, without a browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from minitx.interpret import images
from minitx.interpret.attention_maps import AttentionMaps
from minitx.interpret.html import frame, page
from minitx.tensorboard import map_format as maps_format

STATIC = Path(maps_format.__file__).parent / "static"
HOSTILE = [
    "</script>",
    "<!--",
    "<script>alert(1)</script>",
    "\0",
    "\ud800",
    "http://example.org",
    "HTTPS:",
    "\u202egnol",
]


def random_maps(batch: int, queries: int, keys: int, layers: int = 2, heads: int = 2) -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.rand(batch, heads, queries, keys).softmax(dim=-1) for _ in range(layers)]


def hostile() -> AttentionMaps:
    tokens = {"source": [HOSTILE], "target": [["x" * 10_000, "']]>", "\u2028"]]}
    size = len(HOSTILE)
    return AttentionMaps(tokens, random_maps(1, size, size), random_maps(1, 3, 3), random_maps(1, 3, size))


@pytest.fixture
def maps() -> AttentionMaps:
    """A batch of two: four source and three target tokens, and two and one."""
    tokens = {"source": [["a", "b", "c", "d"], ["e", "f"]], "target": [["x", "y", "z"], ["w"]]}
    return AttentionMaps(tokens, random_maps(2, 4, 4), random_maps(2, 3, 3), random_maps(2, 3, 4))


class Read(HTMLParser):
    """The elements of a page, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.elements.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if self.elements[-1:] == ["script"]:
            self.scripts[-1] += data

    @property
    def runs(self) -> dict[str, Any]:
        return dict(json.loads(self.scripts[1])["runs"])


def saved(maps: AttentionMaps, folder: Path, **options: Any) -> str:
    maps.save_html(folder / "maps.html", **options)
    return (folder / "maps.html").read_text(encoding="utf-8")


def test_the_page_contains_the_weights_of_every_kind_and_example(maps: AttentionMaps, tmp_path: Path) -> None:
    runs = Read(saved(maps, tmp_path)).runs
    tags = {f"{kind}/example_{example}" for kind in maps_format.KINDS for example in (1, 2)}
    assert {run: set(tags) for run, tags in runs.items()} == {"maps": tags}
    for tag, steps in runs["maps"].items():
        (header, *packed) = steps["0"]
        items = [json.dumps(header).encode(), *(base64.b64decode(one) for one in packed)]
        header, weights = maps_format.decode(items)
        kind, _, example = tag.partition("/example_")
        assert header["kind"] == kind
        queries, keys = ("source", "target")[kind != "encoder"], ("source", "target")[kind == "decoder"]
        for side, labels in ((queries, header["queries"]), (keys, header["keys"])):
            tokens = maps.tokens[side][int(example) - 1]
            assert labels == [*tokens, *[None] * (len(labels) - len(tokens))]
        layers = getattr(maps, kind)
        assert header["extras"] == ([] if kind == "cross" else ["rollout"])
        assert len(weights) == len(layers) + len(header["extras"])
        for layer, shown in zip(layers, weights, strict=False):
            assert np.abs(layer[int(example) - 1].numpy() - shown).max() <= 1 / 255


@pytest.mark.parametrize("name", ["maps", "hostile"])
def test_there_is_no_address_in_the_page(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    text = saved(hostile() if name == "hostile" else request.getfixturevalue("maps"), tmp_path)
    assert "http" not in text.lower()
    assert "//" not in re.sub(r"//[ /]|\*/|/\*", "", "".join(Read(text).scripts[2:])).replace('"//"', "")
    assert not {name for name, _ in Read(text).attributes} & {"src", "href", "action", "onload", "onclick"}


def test_weights_that_encode_to_words_are_escaped(tmp_path: Path) -> None:
    packed = base64.b64decode("httpHTTPhttp")
    header = maps_format.encode("encoder", ["a"], ["a"], [np.ones((1, 1, 1))])[0]
    text = page({"http://run": {"encoder/<http>": [header, packed]}})
    assert "http" not in text.lower()
    assert Read(text).runs["http://run"]["encoder/<http>"]["0"][1] == "httpHTTPhttp"


def test_no_token_is_markup(tmp_path: Path) -> None:
    text, plain = saved(hostile(), tmp_path), saved(AttentionMaps({"source": [["a"]]}, random_maps(1, 1, 1)), tmp_path)
    assert text.isascii() or text.encode("utf-8", "strict")
    assert Read(text).elements == Read(plain).elements
    assert len(Read(text).scripts) == 3
    assert "<" not in Read(text).scripts[1]
    assert Read(text).runs["maps"]["encoder/example_1"]["0"][0]["queries"] == HOSTILE
    longest = Read(text).runs["maps"]["decoder/example_1"]["0"][0]["queries"][0]
    assert len(longest) == maps_format.MAX_LABEL_LENGTH
    assert longest.endswith("…")


def test_the_policy_names_the_only_script(maps: AttentionMaps, tmp_path: Path) -> None:
    guard, _, script = Read(saved(maps, tmp_path)).scripts
    (policy,) = re.findall(r'policy.content = "(.*)";', guard)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert "connect-src" not in rules, "nothing may be fetched"


def test_each_module_is_bundled_once_after_its_imports(maps: AttentionMaps, tmp_path: Path) -> None:
    script = Read(saved(maps, tmp_path)).scripts[2]
    made = re.findall(r"^const module_(\w+) = \(\(\)", script, re.MULTILINE)
    needed = {path.stem for path in STATIC.glob("*.js")} - {"index", "source_tensorboard"}
    assert sorted(made) == sorted(needed)
    assert not re.findall(r"^\s*(?:import|export) ", script, re.MULTILINE)
    for name in made:
        assert script.index(f"const module_{name} =") <= script.index(f"module_{name}"), name


def test_several_runs_share_a_page(maps: AttentionMaps, tmp_path: Path) -> None:
    other = AttentionMaps({"target": [["q"]]}, decoder=random_maps(1, 1, 1))
    runs = Read(saved(maps, tmp_path, beside={"later": other})).runs
    assert set(runs) == {"maps", "later"}
    assert set(runs["later"]) == {"decoder/example_1"}
    with pytest.raises(ValueError, match="choose another"):
        maps.save_html(tmp_path / "x.html", beside={"maps": other})


def test_without_maps_no_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no attention"):
        AttentionMaps({"source": [["a"]]}).save_html(tmp_path / "none.html")
    assert not list(tmp_path.iterdir())
    assert AttentionMaps({})._repr_html_() == "<p>no attention maps</p>"


def test_a_notebook_shows_the_page_in_a_sandboxed_frame(maps: AttentionMaps) -> None:
    shown = Read(maps._repr_html_())
    assert shown.elements == ["iframe", "/iframe"]
    attributes = dict(shown.attributes)
    assert attributes["sandbox"] == "allow-scripts allow-downloads"
    assert attributes["title"]
    runs = {"maps": maps._by_tag()}
    assert attributes["srcdoc"] == page(runs)
    assert html.escape(page(runs)) in frame(runs, 400)
    assert "height: 400px" in frame(runs, 400)


# ---- the modules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(STATIC.iterdir()), ids=lambda file: file.name)
def test_files_of_the_page_are_small_and_never_parse_markup(file: Path) -> None:
    text = file.read_text()
    assert text.count("\n") <= 350
    assert max(map(len, text.splitlines())) <= 120
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|https?:", text)


def test_colours_are_those_of_the_pictures() -> None:
    ramp = re.search(r"RAMP = (\[.*?\]);", (STATIC / "colours.js").read_text(), re.DOTALL)
    assert ramp
    assert json.loads(re.sub(r",\s*\]", "]", ramp[1])) == [list(anchor) for anchor in images._RAMP]
