"""The Attention tab in a browser has the numbers of event files; those of a run: callbacks/test_log_attention.py."""

import itertools
import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from browsing import Maps
from torch.utils.tensorboard import SummaryWriter

from minitx.interpret.encoded_maps import by_tag, encoded, encoded_lens
from minitx.tensorboard.events import EventFile
from minitx.tensorboard.map_format import encode
from minitx.tensorboard.writer import add_maps
from predictors import built
from web_pages import eventually, watched

STEP = 1 / 255
MAPS = built("encoder_decoder").attend(["1 2 3 4", "5 6"], ["4 3 2 1", "6 5"])
LAST = 8
"""The last step of the run `reverse/v0`, which has MAPS at each."""
LONG = range(0, 800, 10)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as training writes it, many steps, and damaged maps."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "reverse/v0").mkdir(parents=True)
    run = EventFile(folder / "reverse/v0")
    logged = {**by_tag(MAPS), "lens/example_1": encoded_lens(["1"], {"decoder": np.full((1, 3), 0.25)})}
    for step, (tag, items) in itertools.product(range(LAST + 1), logged.items()):
        add_maps(run, tag, items, step)
    run.close()
    good = encode("encoder", ["a", "b"], ["a", "b"], [np.full((1, 2, 2), 0.25)])
    with SummaryWriter(str(folder / "strange")) as writer:
        add_maps(writer, "encoder/damaged", good, 1)
        add_maps(writer, "encoder/damaged", [good[0], b"no gzip"], 2)
        add_maps(writer, "foreign/x", [b"not ours", b"at all"], 1)
    with SummaryWriter(str(folder / "live")) as writer:
        add_maps(writer, "encoder/x", encoded(MAPS)["encoder"], 0)
    with SummaryWriter(str(folder / "long")) as writer:
        for step in LONG:
            add_maps(writer, "encoder/x", encode("encoder", [str(step)], ["a"], [np.full((1, 1, 1), 0.25)]), step)
    return folder


# Through Python's data server, requests go in process in test_plugin.py; here they go through the one in Rust.
@pytest.fixture(scope="module", params=["--load_fast=auto", pytest.param("--load_fast=false", marks=pytest.mark.slow)])
def address(runs: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a TensorBoard on the runs, once it has read them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), request.param, "--reload_interval", "1"]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(runs), *options]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://localhost:{port}/"
    try:
        for _ in range(900):
            assert server.poll() is None, "tensorboard ended by itself"
            with suppress(OSError):
                found = get(url, "/index")["runs"]
                if {"strange", "live"} <= {*found} and len(found.get("long", {}).get("encoder/x", [])) == len(LONG):
                    break
            time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=20)


def get(address: str, route: str, **query: Any) -> Any:
    with urllib.request.urlopen(f"{address}data/plugin/minitx{route}?{urlencode(query)}") as answer:
        return json.loads(answer.read())


def test_every_step_is_reachable_and_foreign_data_refused(address: str) -> None:
    assert get(address, "/index")["runs"]["long"]["encoder/x"] == [*LONG]
    for step in (0, 10, 430, 790):
        assert get(address, "/header", run="long", tag="encoder/x", step=step)["queries"] == [str(step)]
    for run, tag, step in (("strange", "foreign/x", 1), ("long", "encoder/x", 7), ("long", "none", 0)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(address, "/header", run=run, tag=tag, step=step)
        assert caught.value.code == 404
        assert "attention map" in json.loads(caught.value.read())["error"]


@pytest.fixture(scope="module")
def page(browser: Any, address: str) -> Iterator[Any]:
    """A page of a browser, in which some requests fail on purpose. It polls often."""
    clipboard = ["clipboard-read", "clipboard-write"]
    with watched(browser, address, "data:", "blob:", failures=True, permissions=clipboard) as found:
        found.add_init_script("{ const poll = setInterval; window.setInterval = (run, ms) => poll(run, ms / 20); }")
        yield found


def opened(page: Any, address: str, **view: object) -> Maps:
    """The page of the tab alone, which loads faster than all of TensorBoard, at a view as in a link."""
    fragment = f"#minitx&p.minitx.view={quote(urlencode(view), safe='')}" if view else ""
    page.goto("about:blank")
    page.goto(f"{address}data/plugin_entry.html?name=minitx{fragment}")
    return Maps(page, page)


REVERSE = {"run": "reverse/v0", "example": "example_1"}


def test_the_tab_shows_the_weights(address: str, page: Any) -> None:
    """In TensorBoard's own page, of one kind; every kind, and each row: test_offline_page.py."""
    page.goto(f"{address}#minitx")
    maps = Maps(page.frame_locator("iframe"), page)
    maps.choose("run", "reverse/v0")
    maps.settled("reverse/v0 ")
    maps.choose("example", "example_1")
    maps.kind("decoder")
    maps.settled(f"reverse/v0 decoder/example_1 {LAST}")
    maps.enlarge(1, 1)
    weights = MAPS.layers("decoder")[1].weights[1].numpy()
    assert maps.weights(len(weights) - 1, 1) == pytest.approx([weights[-1, 1]], abs=STEP)
    assert maps.row() == pytest.approx({key: weights[-1, key] for key in maps.row()}, abs=STEP)
    maps.kind("lens")
    maps.enlarge(0, 0)
    maps.hover(0, 1)
    readout = maps.root.locator(".readout").inner_text()
    assert (readout, maps.root.locator(".lines").is_hidden()) == ("token read 1 1, after 1 layer: 0.252", True)
    shade = "() => getComputedStyle(document.body).backgroundColor"
    light = maps.root.locator("body").evaluate(shade)
    page.evaluate("document.body.classList.add('dark-mode')")
    maps.root.locator(":root[data-theme=dark]").wait_for()
    assert maps.root.locator("body").evaluate(shade) != light


def test_steps_by_slider_playback_and_a_copied_link(address: str, page: Any) -> None:
    maps = opened(page, address, **REVERSE, kind="encoder", step=LAST - 1)
    maps.settled(f"encoder/example_1 {LAST - 1}")
    maps.press("▶ Play")
    maps.settled(f"encoder/example_1 {LAST}")
    eventually(maps.root, "document.body.innerText.includes('▶ Play')")  # it ends by itself
    maps.press("▶ Play")
    maps.settled("encoder/example_1 0")
    slider = maps.root.get_by_label("step", exact=True).first
    assert slider.get_attribute("max") == str(LAST), "a step after each of the run, and one before"
    slider.fill("0")
    maps.settled("encoder/example_1 0")
    maps.press("Copy link")
    maps.root.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    page.goto("about:blank")
    page.goto(copied)
    Maps(page, page).settled("reverse/v0 encoder/example_1 0")


def test_the_newest_run_is_compared_with_the_one_before(address: str, page: Any) -> None:
    maps = opened(page, address, run="reverse/v0", compare="true")
    maps.settled("reverse/v0")
    assert maps.root.get_by_label("with run").input_value() == "reverse/v0", "no other one has its examples"
    maps.root.locator(".owner", has_text=re.compile(f"^step {LAST}$")).first.wait_for()
    assert maps.root.locator('[data-tile="0:0"] .owner').all_inner_texts() == [f"step {LAST}", "step 0"]
    maps.enlarge(0, 0)
    captions = maps.root.locator(".detail figcaption").all_inner_texts()
    assert captions == [f"reverse/v0, step {LAST}", "reverse/v0, step 0"]


def test_a_damaged_map_is_an_error_message(address: str, page: Any) -> None:
    maps = opened(page, address, run="strange", example="damaged", step=1)
    maps.settled("strange encoder/damaged 1")
    maps.key("]")
    maps.alerted("damaged")
    maps.key("[")
    maps.settled("strange encoder/damaged 1")
    assert maps.root.get_by_role("alert").count() == 0


def test_the_latest_step_is_followed_while_training_writes(address: str, page: Any, runs: Path) -> None:
    (last,) = get(address, "/index")["runs"]["live"]["encoder/x"][-1:]
    with SummaryWriter(str(runs / "live")) as writer:

        def log(step: int) -> None:
            add_maps(writer, "encoder/x", encoded(MAPS)["encoder"], step)
            writer.flush()

        maps = opened(page, address, run="live")
        assert maps.root.get_by_label("follow latest").is_checked(), "until a step is chosen"
        log(last + 1)
        maps.settled(f"live encoder/x {last + 1}")
        maps.root.get_by_label("follow latest").uncheck()
        log(last + 2)
        eventually(maps.root, f"document.querySelector('input[type=range]').max === '{last + 2}'")
        assert maps.root.get_by_label("step", exact=True).first.input_value() == str(last + 1)
        maps.settled(f"live encoder/x {last + 1}")


def test_a_failed_request_is_retried(address: str, page: Any) -> None:
    asked, answer = list[str](), {"status": 404, "json": {"error": "not yet"}}
    slow = "(...all) => new Promise((answer) => setTimeout(answer, 300)).then(() => at_once(...all))"
    page.add_init_script(f"{{ const at_once = fetch; window.fetch = {slow}; }}")  # longer than between two polls
    page.on("request", lambda one: "/header?" in one.url and asked.append(one.url))
    page.route("**/plugin/minitx/header*", lambda one: one.fulfill(**answer), times=1)
    maps = opened(page, address, **REVERSE, kind="cross", step=1)
    maps.settled("cross/example_1 1")
    key = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: ']', bubbles: true}))"
    theme = "document.body.classList.toggle('dark-mode'); await new Promise(setTimeout)"
    shown = page.evaluate(f"async () => {{ {key}; {theme}; return document.body.dataset.drawn; }}")
    assert shown.endswith(" 1"), "those of step 2 are not loaded yet"
    maps.settled("cross/example_1 2")
    page.route("**/plugin/minitx/index*", lambda route: route.abort())
    maps.alerted("does not answer")
    page.unroute_all()
    maps.alerted("")
    assert sorted(map(asked.count, {*asked}))[-2:] == [1, 2], "once each, and again after the failure"
    with page.expect_request("**/header?*cross*step=2*"):  # of another run of this name
        page.route("**/plugin/minitx/index*", lambda one: one.fulfill(json={**get(address, "/index"), "began": {}}))


def test_without_maps_the_page_names_the_key(address: str, page: Any) -> None:
    page.route("**/plugin/minitx/index*", lambda route: route.fulfill(json={"runs": {}}))
    page.goto(f"{address}data/plugin_entry.html?name=minitx")
    page.get_by_role("alert").get_by_text("every_n_steps").wait_for()
