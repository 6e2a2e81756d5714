"""The offline page, opened from disk without network: its numbers are those of the maps."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browsing import Maps
from PIL import Image
from torch import Tensor

from minitx.interpret import head_statistics as statistics
from minitx.interpret.attention_maps import AttentionMaps
from minitx.interpret.images import RAMP
from minitx.tensorboard.map_format import Statistic
from web_pages import eventually, watched

STEP = 1 / 255
SOURCE, TARGET = ["der", "Hund", "rennt", "<eos>"], ["<bos>", "a", "dog"]
HOSTILE = [
    "</script><script>window.hacked = 1</script>", "<img src=x onerror=window.hacked=1>", "<!--", "שלום", "👩‍👩‍👧",
    "\0", "\ud800", "\u202egnol", "\n", " ", "", "z̷̡" * 40, "x" * 10_000,
]  # fmt: skip


def random_maps(batch: int, queries: int, keys: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(4 * torch.randn(batch, 2, queries, keys, generator=generator)).softmax(dim=-1) for _ in range(2)]


def some(source: list[list[str]], target: list[list[str]], seed: int) -> AttentionMaps:
    """Maps of every kind, for a batch of texts of which the first are the longest."""
    sizes = itertools.product((len(source[0]), len(target[0])), repeat=2)
    encoder, _, cross, decoder = (random_maps(len(source), *size, seed + index) for index, size in enumerate(sizes))
    return AttentionMaps({"source": source, "target": target}, encoder, decoder, cross)


NAMELESS = """[...document.querySelectorAll("button, select, input, [tabindex]")].filter((one) =>
    one.offsetParent && !one.labels?.length
    && !/[\\p{L}\\p{N}√]/u.test(one.getAttribute("aria-label") ?? (one.tagName === "BUTTON" ? one.textContent : "")))
    .map((one) => one.outerHTML)"""
"""Controls without a name of letters or digits."""
MAPS, LATER = (some([SOURCE, SOURCE[:2]], [TARGET, TARGET[:2]], seed) for seed in (1, 7))
Opened = Callable[..., Maps]
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two examples, with statistics of our own."""
    known = [
        Statistic("evenness", "how <b>even</b> it is", False, [[0.1, None], [0.4, 0.2]]),
        Statistic("copying", "looks at what it copies", True, [[0.2, 0.49], [0.93, 0.5]]),
        Statistic("first_token", "looks at the first token", True, [[0.1, 0.1], [0.6, 0.45]]),
    ]
    path = tmp_path_factory.mktemp("offline") / "maps.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minitx.interpret.encoded_maps.head_statistics", lambda layers: [*known])
        MAPS.save_html(path, beside={"later": LATER})
    return path


@pytest.fixture(scope="module")
def opened(browser: Any) -> Iterator[Opened]:
    """Open a file in a page without network, which all tests share."""
    with watched(browser, "file:", "blob:", "data:", offline=True) as page:

        def open_file(path: Path, view: str = "", width: int = 1300) -> Maps:
            if page.viewport_size["width"] != width:
                page.set_viewport_size({"width": width, "height": 900})
            page.goto(f"{path.as_uri()}?{next(NUMBERS)}{view}")  # of another number: loaded, not only scrolled
            return Maps(page, page)

        yield open_file


def head(maps: AttentionMaps, kind: str, layer: int, number: int, example: int = 0) -> np.ndarray:
    return np.asarray(getattr(maps, kind)[layer][example, number])


def test_every_kind_shows_the_weights_of_the_model_and_then_the_rollout(opened: Opened, file: Path) -> None:
    maps = opened(file)
    for kind in ("encoder", "decoder", "cross"):
        maps.kind(kind)
        assert maps.tiles() == ["0:0", "0:1", "1:0", "1:1", *([] if kind == "cross" else ["2:0"])]
        maps.enlarge(1, 0)
        assert maps.title == "Layer 2, head 1"
        for row, weights in enumerate(head(MAPS, kind, 1, 0)):
            column = (2 * row + 1) % len(weights)
            assert maps.weights(row, column) == pytest.approx([weights[column]], abs=STEP)
            listed = maps.row()
            assert listed == pytest.approx(dict(enumerate(weights)), abs=STEP)
            assert list(listed.values()) == sorted(listed.values(), reverse=True), "the strongest first"
        if kind != "cross":
            maps.enlarge(2, 0)
            assert maps.title == "Rollout"
            assert maps.weights(2, 1) == pytest.approx([float(MAPS.rollout(kind, 0)[2, 1])], abs=STEP)


def test_heads_are_sorted_and_named_by_statistics(opened: Opened, file: Path) -> None:
    maps = opened(file)
    marks = {tile: maps.root.locator(f'[data-tile="{tile}"] .mark').all_inner_texts() for tile in maps.tiles()}
    assert marks == {"0:0": [], "0:1": [], "1:0": ["copying"], "1:1": ["copying"]}, "the strongest of 0.5 or more"
    assert "looks at what it copies" in maps.root.locator('[data-tile="1:0"]').get_attribute("title")
    maps.choose("sort heads by", "copying")
    assert maps.tiles() == ["1:0", "1:1", "0:1", "0:0"]
    maps.choose("sort heads by", "evenness")
    assert maps.tiles() == ["1:0", "1:1", "0:0", "0:1"], "a head without a value comes last"
    maps.choose("sort heads by", "layer")
    assert maps.tiles() == ["0:0", "0:1", "1:0", "1:1"]
    maps.enlarge(1, 0)
    panel = maps.root.locator(".statistics")
    assert panel.locator("[data-statistic=copying]").inner_text() == "0.930"
    assert "how <b>even</b> it is" in panel.inner_text()


def test_colours_follow_the_ramp(opened: Opened, file: Path) -> None:
    maps = opened(file)
    for scale, kind in (("√", "encoder"), ("linear", "cross")):
        maps.press(scale)
        maps.kind(kind)
        for row, column in np.ndindex(head(MAPS, kind, 1, 1).shape):
            level = round(255 * head(MAPS, kind, 1, 1)[row, column] ** 0.5) / 255
            place = (level if scale == "√" else level**2) * (len(RAMP) - 1)
            wanted = [np.interp(place, range(len(RAMP)), [anchor[part] for anchor in RAMP]) for part in range(3)]
            assert maps.pixel("1:1", column, row)[:3] == pytest.approx(wanted, abs=4)


def test_two_runs_are_compared_and_subtracted(opened: Opened, file: Path) -> None:
    maps = opened(file)
    maps.root.get_by_label("compare", exact=True).check()
    maps.choose("with run", "later")
    eventually(maps.root, "document.querySelectorAll('.owner:not([hidden])').length === 8")
    assert maps.root.get_by_label("with run").get_attribute("title") == "later", "for a name that is cut"
    assert maps.root.locator('[data-tile="1:1"] .owner').all_inner_texts() == ["maps", "later"]
    maps.enlarge(0, 1)
    one, two = head(MAPS, "cross", 0, 1), head(LATER, "cross", 0, 1)
    assert maps.weights(2, 1) == pytest.approx([one[2, 1], two[2, 1]], abs=STEP)
    assert maps.root.locator(".detail figcaption").all_inner_texts() == ["maps", "later"]
    assert maps.root.get_by_text("first: maps; second: later").is_visible()
    assert maps.page.evaluate(NAMELESS) == []
    maps.press("difference")
    for row, column in ((0, 0), (1, 2), (2, 3)):
        assert maps.weights(row, column) == pytest.approx([one[row, column] - two[row, column]], abs=2 * STEP)
    assert maps.root.locator(".row h3").inner_text().endswith("differs at")
    signs = "all => all.map(one => [one.dataset.weight > 0, one.querySelector('.bar').style.getPropertyValue('--bar')])"
    found = {tuple(pair) for pair in maps.root.locator(".row li").evaluate_all(signs)}
    assert len(found) == len({more for more, _ in found}) == len({colour for _, colour in found}) == 2
    _, top, cell = map(float, maps.root.locator(".matrix").first.get_attribute("data-geometry").split())
    maps.root.locator(".detail .lines canvas").first.hover(position={"x": 5, "y": top + 2.5 * cell})
    assert maps.root.locator(".row").get_attribute("data-query") == "2"
    row, column = np.unravel_index(np.abs(one - two).argmax(), one.shape)
    red, _, blue, _ = maps.pixel("0:1", int(column), int(row))
    assert (red > blue) == (one[row, column] > two[row, column]), "orange is more, blue is less"


def test_runs_of_different_depth_are_compared_layer_by_layer(opened: Opened, tmp_path: Path) -> None:
    own, cross = {"source": [SOURCE], "target": [SOURCE]}, random_maps(1, 4, 4, 3)
    runs = [AttentionMaps(own, [], random_maps(1, 4, 4, seed)[:seed], cross[: seed * 2 - 2]) for seed in (2, 1)]
    runs[0].save_html(tmp_path / "maps.html", beside={"shallow": runs[1]})
    for show, axes in (("beside", ["key: answer so far →", "key: text →"]), ("difference", ["key: answer so far →"])):
        maps = opened(tmp_path / "maps.html", f"#kind=decoder&compare=true&show={show}")
        assert maps.root.locator('[data-tile="0:0"] .across:visible').all_inner_texts() == axes
        assert len({*maps.root.locator(".tile").evaluate_all("all => all.map((one) => one.clientWidth)")}) == 1
        maps.root.locator('[data-tile="1:0"]').click()
        maps.root.locator(".figures").get_by_text("The other run lacks this head.").wait_for()
    maps = opened(tmp_path / "maps.html", "#kind=decoder&compare=true&show=difference&item=2")
    deep, shallow = (run.rollout("decoder") for run in runs)
    assert maps.weights(2, 1) == pytest.approx([float(deep[2, 1] - shallow[2, 1])], abs=2 * STEP)


def test_a_tile_has_tokens_and_axes(opened: Opened, file: Path) -> None:
    maps = opened(file)
    tile = maps.root.locator('[data-tile="1:1"] .plot').first
    for side, tokens in (("keys", SOURCE), ("queries", TARGET)):
        assert tile.locator(f".tokens.{side} bdi").all_inner_texts() == tokens
    assert tile.locator(".axis").all_inner_texts() == ["key: input →", "← query: answer so far"]
    about = maps.root.get_by_label("what is shown")
    assert about.locator("bdi").all_inner_texts() == ["maps", "der Hund rennt", "a dog"], "model, prompt and answer"
    assert "Clearest pattern: layer 2, head 1, copying 0.93: looks at what it copies." in about.inner_text()
    menu = maps.root.get_by_label("example", exact=True).locator("option")
    menu.filter(has_text="example 2: der Hund → a").wait_for(state="attached")  # its header is loaded last
    assert menu.all_inner_texts() == ["example 1: der Hund rennt → a dog", "example 2: der Hund → a"]


OVERLAPS = """() => {
    const seen = [...document.querySelectorAll("header button, header select, header label, header input, output,"
        + ".legend, .about p, .name, .tokens, .axis, .owner, .plot canvas, .caption, .detail h2, .detail > .note,"
        + ".matrix .overlay, .lines canvas, .readout, .row h3, .row li, .statistics dt, .statistics dd")]
        .filter((one) => one.checkVisibility() && one.getBoundingClientRect().width > 0);
    const boxes = seen.map((one) => one.getBoundingClientRect());
    return seen.flatMap((one, i) => seen.filter((two, j) => {
        const wide = Math.min(boxes[i].right, boxes[j].right) - Math.max(boxes[i].left, boxes[j].left);
        const high = Math.min(boxes[i].bottom, boxes[j].bottom) - Math.max(boxes[i].top, boxes[j].top);
        return j > i && !one.contains(two) && !two.contains(one) && wide > 1.5 && high > 1.5;
    }).map((two) => [one, two].map((a) => a.className + ":" + a.textContent.slice(0, 30))));
}"""
"""Pairs of elements that cover each other."""


def test_no_element_covers_another_at_three_widths(opened: Opened, file: Path) -> None:
    for width in (1300, 800, 390):
        maps = opened(file, width=width)
        for view in ("#kind=encoder", "#compare=true", "#item=1&head=1&query=1", "#item=1&compare=true&query=1"):
            maps.follow(view)
            assert maps.page.evaluate(OVERLAPS) == [], (width, view)
            assert maps.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (width, view)
        maps.follow("")
        maps.enlarge(1, 1)
        eventually(maps.root, "document.activeElement.classList.contains('matrix')")
        bar, head = (f"document.querySelector('{name}')" for name in (".controls", ".detail"))
        under = f"(getComputedStyle({bar}).position === 'sticky' ? {bar}.getBoundingClientRect().bottom : 0)"
        assert maps.page.evaluate(f"{head}.getBoundingClientRect().top >= {under}"), "the opened head is below the bar"


FILLED = """(({ left, width }) => Math.max(...[...document.querySelectorAll(".tokens.keys")].map((one) =>
    (one.getBoundingClientRect().right - left) / width)))(document.querySelector("main").getBoundingClientRect())"""
"""The share of the page's width that tiles with tokens use."""


@pytest.mark.parametrize(("source", "filled"), [("6062052356316640", 0.8), ("60", 0.0)])
def test_tiles_use_the_page_and_no_name_is_cut(opened: Opened, tmp_path: Path, source: str, filled: float) -> None:
    target, both = {"target": [["<bos>", *"0466136532502606"]]}, (source, "6062052356316640")
    runs = [AttentionMaps({"source": [[*keys]], **target}, [], [], random_maps(1, 17, len(keys), 1)) for keys in both]
    runs[0].save_html(tmp_path / "maps.html", beside={"reversal/v12": runs[1]})
    for width in (1300, 390):
        maps = opened(tmp_path / "maps.html", width=width)
        for view in ("kind=cross", "compare=true"):
            maps.follow(view)
            assert maps.page.evaluate(FILLED) > filled, (width, view)
            assert maps.root.locator(".keys:visible bdi").count() == 4 * (len(source) + 16 * ("compare" in view))
            assert maps.page.evaluate(OVERLAPS) == [], (width, view)
            names = "[...document.querySelectorAll('.owner:not([hidden]), .across')]"
            cut = f"{names}.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
            assert maps.page.evaluate(cut) == [], (width, view)


def test_padding_is_hidden_by_default(opened: Opened, file: Path) -> None:
    maps = opened(file)
    assert maps.root.get_by_label("show padding").is_hidden()
    maps.choose("example", "example_2")
    maps.settled("cross/example_2")
    maps.enlarge(0, 0)
    maps.hover(0, 1)
    assert set(maps.row()) == {0, 1}
    assert maps.weights(1, 0) == pytest.approx([head(MAPS, "cross", 0, 0, 1)[1, 0]], abs=STEP)
    canvas = maps.canvas("0:0")
    assert canvas.evaluate("(one) => [one.width, one.height]") == [2, 2]
    maps.root.get_by_label("show padding").check()
    assert canvas.evaluate("(one) => [one.width, one.height]") == [4, 3]
    red, green, blue, _ = maps.pixel("0:0", 3, 0)
    assert 190 < min(red, green, blue) <= max(red, green, blue) < 235, "padding is a light grey"
    maps.hover(2, 0)
    assert all("padding" in maps.root.locator(name).inner_text() for name in (".readout", ".row"))
    assert maps.root.locator(".readout").get_attribute("data-weight") is None
    maps.hover(0, 0)
    assert set(maps.row()) == {0, 1}, "padded keys are not listed"


def test_it_works_by_keyboard_alone(opened: Opened, file: Path) -> None:
    maps = opened(file, "#kind=encoder")
    page = maps.page
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.tile") == "0:0":
            break
    for key, tile in (("ArrowRight", "0:1"), ("ArrowRight", "1:0"), ("ArrowDown", "2:0"), ("ArrowUp", "0:0")):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.tile") == tile, "two layers fit beside each other"
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    eventually(maps.root, "document.activeElement.classList.contains('matrix')")
    assert maps.title == "Layer 2, head 2"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert maps.root.locator(".row h3").inner_text() == "query 2 Hund attends to"
    assert maps.root.locator(".matrix").get_attribute("aria-valuetext") == "2: Hund"
    page.keyboard.press("ArrowUp")
    assert maps.root.locator(".row h3").inner_text() == "query 1 der attends to"
    page.keyboard.press("ArrowLeft")
    assert maps.title == "Layer 2, head 1"
    page.keyboard.press("l")
    assert maps.root.get_by_role("button", name="linear").get_attribute("aria-pressed") == "true"
    page.keyboard.press("?")
    assert maps.root.get_by_role("dialog", name="keys").is_visible()
    page.keyboard.press("Escape")
    assert maps.root.get_by_role("dialog", name="keys").is_hidden()
    page.keyboard.press("Escape")
    assert maps.root.locator(".detail").is_hidden()
    eventually(maps.root, "document.activeElement.dataset.tile === '1:0'")


def test_a_link_reopens_the_view_and_its_invalid_values_are_ignored(opened: Opened, file: Path) -> None:
    maps = opened(file)
    maps.kind("decoder")
    maps.press("linear")
    maps.enlarge(1, 1)
    maps.root.locator(".matrix").press("ArrowDown")
    view = "#" + maps.page.url.partition("#")[2]
    assert "padding" not in view, "a link contains only chosen values"
    again = opened(file, view)
    assert again.title == "Layer 2, head 2"
    assert again.root.locator("body[data-drawn='maps decoder/example_1 0']").count() == 1
    assert again.root.get_by_role("button", name="linear").get_attribute("aria-pressed") == "true"
    assert again.root.locator(".row h3").inner_text() == "query 1 <bos> attends to"
    again.follow("kind=encoder&item=0")
    again.settled("encoder/example_1")
    assert again.title == "Layer 1, head 1"
    for view in ("item=99&head=3", "run=gone&kind=none&step=77&query=500&item=1", "%E0%A4%A&&==&item=-1&scale=red"):
        maps = opened(file, f"#{view}")
        assert len(maps.tiles()) == 4
        maps.enlarge(0, 0)
        assert maps.weights(0, 0) == pytest.approx([head(MAPS, "cross", 0, 0)[0, 0]], abs=STEP)


def test_light_and_dark(opened: Opened, file: Path) -> None:
    paper, page = "getComputedStyle(document.body).backgroundColor", opened(file).page
    light = page.evaluate(paper)
    page.emulate_media(color_scheme="dark")
    maps, dark = opened(file), page.evaluate(paper)
    page.emulate_media(color_scheme="light")
    shades = [sum(map(int, colour[4:-1].split(","))) for colour in (dark, light)]
    assert shades[0] < 150 < 600 < shades[1]
    eventually(maps.root, f"{paper} === '{light}'")
    maps.press("light or dark")
    assert page.evaluate(paper) == dark


def test_images_can_be_downloaded(opened: Opened, file: Path, tmp_path: Path) -> None:
    long, other = (some([[word]], [["<bos>", answer]], 1) for word, answer in (("x" * 300, "a"), ("y", "b")))
    long.save_html(tmp_path / "two.html", beside={"later": other})
    written = "CanvasRenderingContext2D.prototype.fillText"
    recorded = "{ apply: (own, canvas, given) => (texts.push(given[0]), own.apply(canvas, given)) }"
    texts, sizes = [], []
    for path, view in ((tmp_path / "two.html", "#compare=true&item=0"), (file, "#item=0&query=1")):
        maps = opened(path, view)
        maps.page.evaluate(f"() => {{ window.texts = []; {written} = new Proxy({written}, {recorded}) }}")
        for name in ("Save PNG", "save this head"):
            with maps.page.expect_download() as download:
                maps.root.get_by_role("button", name=name).click()
            with Image.open(download.value.path()) as image:
                colours = image.convert("RGB").getcolors(1 << 24)
                margin = image.convert("RGB").crop((0, 100, 34, image.height)).getcolors()
                sizes.append(image.size)
            assert (image.format, len(colours) > 20) == ("PNG", True), "not empty"
        texts.append(maps.page.evaluate("window.texts"))
    cut = [text for text in texts[0] if text.endswith((20 * "x" + "… → a", "y → b"))]
    assert (len(cut), len({*sizes})) == (4, 4)
    assert {*SOURCE, *TARGET, "key: input →", "der Hund rennt → a dog"} <= {*texts[1]}
    assert [colour for _, colour in margin] == [(255, 255, 255)], "that of the panel, beside the chosen row too"


def test_hostile_tokens_are_text(opened: Opened, tmp_path: Path) -> None:
    size = len(HOSTILE)
    AttentionMaps({"source": [HOSTILE]}, random_maps(1, size, size, 5)).save_html(tmp_path / "hostile.html")
    shown = opened(tmp_path / "hostile.html", "#item=0")
    page, texts = shown.page, []
    for _ in HOSTILE:
        page.keyboard.press("ArrowDown")
        texts.append(shown.root.locator(".row h3 bdi").inner_text())
    assert texts[0].startswith("</script><script>window.hacked")
    assert texts[2:11] == ["<!--", "שלום", "👩‍👩‍👧", "␀", "⟨D800⟩", "⟨202E⟩gnol", "↵", "␣", "∅"]
    assert texts[12] == "x" * 39 + "…"
    assert page.evaluate("[window.hacked, document.querySelectorAll('img, script[src]').length]") == [None, 0]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no overflow"


def test_a_text_of_byte_tokens_is_decoded_and_unseen_tokens_are_named(opened: Opened, tmp_path: Path) -> None:
    tokens = ["Ein", "ĠHund", "ĠÃ¼", "ber", "ĠðŁĺĢ", "\u200d"]
    some([tokens[:5]], [["▁a", "▁Ã", "«", "\u200d"]], 1).save_html(tmp_path / "bytes.html")
    maps = opened(tmp_path / "bytes.html")
    assert maps.root.locator(".about bdi").all_inner_texts()[1:] == ["Ein Hund über 😀", "a Ã«\u200d"]
    assert "⟨200D⟩" in maps.root.locator('[data-tile="0:0"] .queries').first.inner_text()


TEXTS: dict[str | None, dict[str, list[str]]] = {
    "": {"שלום": ["<bos>", *"×©×ľ×ķ×Ŀ", "<eos>"], "oneword": ["one", "word"], "98+78": [*"98+78"], "né": [*"né"],
         "čau": [*"čau"], "a↵<eos>b": ["a", "Ċ", "<eos>", "b"], "a b": [*"a b"], "x": ["x", "<pad>", "<eos>"],
         "猫が好き": ["猫が好ãģ", "į"], "«É» preț": ["«É", "»", "Ġpre", "È", "Ľ"], "DÖ« é": ["DÖ", "«", " ", "é"]},
    " ": {"1 Ġ2 <eos> 3": ["1", "Ġ2", "<eos>", "3", "<eos>"]}, None: {"8 + 7": [*"8+7"], "a word": ["a", "Ġword"],
           "čau »Spaß« 犬»↵.": ["čau", "Ġ»", "Spaß", "«", "Ġ", "ç", "Ĭ¬", "»", "Ċ", "."], "ein über": ["ein", "Ġüber"]},
}  # fmt: skip


@pytest.mark.parametrize("separator", TEXTS)
def test_a_text_is_shown_as_it_was_written(opened: Opened, tmp_path: Path, separator: str | None) -> None:
    tokens = [*TEXTS[separator].values()]
    weights = random_maps(len(tokens), *[max(map(len, tokens))] * 2, seed=1)
    AttentionMaps({"source": tokens}, weights, separator=separator).save_html(tmp_path / "texts.html")
    maps = opened(tmp_path / "texts.html")
    menu = maps.root.get_by_label("example", exact=True).locator("option")
    menu.filter(has_text=f"example {len(tokens)}: ").wait_for(state="attached")
    assert [option.partition(": ")[2] for option in menu.all_inner_texts()] == [*TEXTS[separator]]


def test_only_the_pages_own_script_runs_and_nothing_is_fetched(file: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto(file.as_uri())
    Maps(page, page)
    assert page.evaluate("""async () => {
        document.body.append(Object.assign(document.createElement("script"), { textContent: "window.foreign = 1" }));
        const fetched = await fetch("data:text/plain,x").then(() => true, () => false);
        return [window.foreign ?? null, fetched];
    }""") == [None, False]
    page.set_content(f"<body>{MAPS._repr_html_()}</body>")  # as a notebook shows it
    maps = Maps(page.frame_locator("iframe"), page)
    maps.enlarge(0, 0)
    assert maps.weights(0, 0) == pytest.approx([head(MAPS, "cross", 0, 0)[0, 0]], abs=STEP)
    assert maps.root.get_by_role("button", name="Copy link").count() == 0, "no link without URL"
    page.close()


CUT = """([base, overlay]) => {
    const inked = (one, y) => one.getContext("2d").getImageData(0, y, 30, 1).data.some((part, i) => i % 4 > 2 && part);
    const lines = [...Array(base.height - 80).keys()].map((y) => +inked(base, y + 80) && 1 + inked(overlay, y + 80));
    return [/12|21/.test(lines.join("")), base.width / base.clientWidth >= 2];
}"""
"""Whether a mark covers a label of an enlarged head in part, and whether the head has the density of a picture."""


def test_long_texts_lose_no_key_and_add_up(opened: Opened, tmp_path: Path) -> None:
    size = 128
    weights = torch.full((1, 16, size, size), 1 / size)
    weights[:, 0] = torch.eye(size)[1]
    AttentionMaps({"source": [["a"] * size]}, [weights]).save_html(tmp_path / "long.html")
    maps = opened(tmp_path / "long.html")
    assert maps.canvas("0:0").evaluate("one => one.width <= one.clientWidth * devicePixelRatio"), "no pixel is left out"
    assert maps.pixel("0:0", 0, 5)[:3] == pytest.approx(RAMP[-1], abs=4)
    maps.root.get_by_label("sort heads by", exact=True).press("l")
    assert maps.root.get_by_role("button", name="\u221a", exact=True).get_attribute("aria-pressed") == "true"
    maps.enlarge(0, 1)
    for row in range(98, 104):
        maps.hover(row, 3)
        assert maps.root.locator(".matrix canvas").evaluate_all(CUT) == [False, True]
    others, value = maps.root.locator(".row .note").first.inner_text().split(": ")
    assert (others, float(value)) == ("120 other keys", pytest.approx(120 / size, abs=0.004))


def test_rows_of_heads_are_of_equal_length(opened: Opened, tmp_path: Path) -> None:
    weights = torch.full((1, 5, 40, 20), 1 / 20)  # the tokens of all five need more than a row
    AttentionMaps({"source": [["a"] * 20], "target": [["b"] * 40]}, cross=[weights]).save_html(tmp_path / "flat.html")
    tiles = "[...document.querySelectorAll('[data-tile]')].map((one) => one.getBoundingClientRect().top)"
    assert [*Counter(opened(tmp_path / "flat.html").root.evaluate(tiles)).values()] == [3, 2]


def test_many_heads_are_drawn_when_they_come_into_view(opened: Opened, tmp_path: Path, monkeypatch: Any) -> None:
    every = [(3 * torch.randn(1, 12, 24, 24)).softmax(dim=-1) for _ in range(12)]
    monkeypatch.setattr(statistics, "MEASURES", {})
    AttentionMaps({"source": [[str(place) for place in range(24)]]}, every).save_html(tmp_path / "many.html")
    maps = opened(tmp_path / "many.html", "#sort=copying")
    assert maps.root.get_by_label("sort heads by").input_value() == "layer", "there are no statistics"
    tops = "[...document.querySelectorAll('[data-tile^=\"0:\"]')].map((one) => one.getBoundingClientRect().top)"
    assert len(set(maps.root.evaluate(tops))) == 1, "the heads of a layer are in one row"
    first, last = (f"document.querySelector('[data-tile=\"{tile}\"] canvas').width > 1" for tile in ("0:0", "11:11"))
    eventually(maps.root, first)
    assert not maps.page.evaluate(last)
    maps.root.locator('[data-tile="11:11"]').scroll_into_view_if_needed()
    eventually(maps.root, last)
    maps.enlarge(11, 11)
    assert maps.weights(23, 0) == pytest.approx([float(every[11][0, 11, 23, 0])], abs=STEP)
