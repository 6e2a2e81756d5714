"""The Attention tab in TensorBoard and a browser: its numbers are those of the trained model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from browsing import CHROMIUM, WHY_SKIPPED, Maps, tensorboard
from torch.utils.tensorboard import SummaryWriter

import minitx
from minitx.cli.main import main
from minitx.interpret.attention_maps import AttentionMaps
from minitx.tensorboard import map_format as maps_format
from minitx.tensorboard.writer import add_maps
from predictors import built

ROOT = Path(__file__).parents[2]
STEP = 1 / 255

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_SKIPPED)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of reversal, a run with a damaged map, and one whose tokens would like to be markup."""
    folder = tmp_path_factory.mktemp("tab") / "runs"
    short = ["--trainer.max_steps", "6", "--trainer.val_every_n_steps", "2", "--data.test_size", "10"]
    main(["train", "--config", str(ROOT / "configs/reverse.yaml"), *short, "--run.folder", str(folder)])
    token = "<img src=x onerror=parent.hacked=1>"
    hostile = maps_format.encode("encoder", [token, "שלום"], [token, "👩‍👩‍👧"], [np.full((1, 2, 2), 0.25)])
    with SummaryWriter(str(folder / "strange")) as writer:
        add_maps(writer, "encoder/hostile", hostile, 1)
        add_maps(writer, "encoder/hostile", [hostile[0], b"no gzip"], 2)
    return folder


@pytest.fixture(scope="module")
def trained(runs: Path) -> AttentionMaps:
    """The maps of the trained model, for the example that the tab shows first."""
    predictor = minitx.load(runs / "reverse" / "v0" / "last.ckpt", "cpu")
    questions = predictor.task.examples("validation", 2).source.tolist()
    texts = [predictor.tokenizer.decode(row) for row in questions]
    return predictor.attend(texts, predictor.generate(texts))


# Both data servers are tested without a browser in test_servers.py.
@pytest.fixture(scope="module", params=["--load_fast=auto", pytest.param("--load_fast=false", marks=pytest.mark.slow)])
def address(runs: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    with tensorboard(runs, request.param, "--reload_interval", "1") as url:
        yield url


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of a browser; fails where something goes wrong in it."""
    context = browser.new_context(viewport={"width": 1300, "height": 900}, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    found = context.new_page()
    errors: list[str] = []
    found.on("pageerror", lambda error: errors.append(str(error)))
    yield found
    context.close()
    assert not errors


def opened(page: Any, address: str) -> Maps:
    page.goto(address)
    return Maps(page.frame_locator("iframe"), page)


def link(address: str, **view: object) -> str:
    return f"{address}#minitx&p.minitx.view={quote(urlencode(view), safe='')}"


REVERSE = {"run": "reverse/v0", "example": "example_1"}


def test_every_kind_shows_the_weights_of_the_model(address: str, page: Any, trained: AttentionMaps) -> None:
    maps = opened(page, f"{address}#minitx")
    maps.choose("run", "reverse/v0")
    maps.settled("reverse/v0 ")
    maps.choose("example", "example_1")
    for kind in ("encoder", "decoder", "cross"):
        maps.kind(kind)
        maps.settled(f"reverse/v0 {kind}/example_1 6")
        layers = trained.layers(kind)
        rollout = [] if kind == "cross" else [f"{len(layers)}:0"]
        assert maps.tiles() == [f"{layer}:{head}" for layer in range(len(layers)) for head in range(2)] + rollout
        maps.enlarge(1, 1)
        weights = layers[1].weights[1].numpy()
        for row, column in {(0, 0), (len(weights) - 1, 0), (0, weights.shape[1] - 1)}:
            assert maps.weights(row, column) == pytest.approx([weights[row, column]], abs=STEP)
            assert maps.row() == pytest.approx({key: weights[row, key] for key in maps.row()}, abs=STEP)
        page.keyboard.press("Escape")


def test_steps_by_key_slider_and_playback(address: str, page: Any) -> None:
    maps = opened(page, link(address, **REVERSE, kind="cross", step=2))
    maps.settled("cross/example_1 2")
    maps.key("]")
    maps.settled("cross/example_1 4")
    maps.key("[")
    maps.settled("cross/example_1 2")
    maps.press("▶ Play")
    maps.settled("cross/example_1 6")
    maps.root.get_by_role("button", name="▶ Play").wait_for()  # it ends by itself
    maps.root.get_by_label("step", exact=True).first.fill("1")
    maps.settled("cross/example_1 4")


def test_a_copied_link_reopens_the_view(address: str, page: Any) -> None:
    maps = opened(page, link(address, **REVERSE, kind="encoder", step=4))
    maps.settled("encoder/example_1 4")
    maps.enlarge(1, 0)
    maps.root.locator(".matrix").press("ArrowDown")
    maps.press("linear")
    maps.press("Copy link")
    maps.root.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    fresh = page.context.new_page()
    again = opened(fresh, copied)
    again.settled("reverse/v0 encoder/example_1 4")
    again.root.get_by_role("heading", name="Layer 2, head 1").wait_for()
    assert again.root.locator(".row h3").inner_text().startswith("query 1 ")
    assert again.root.get_by_role("button", name="linear").get_attribute("aria-pressed") == "true"
    assert fresh.url == copied


def test_dark_mode_is_tensorboards(address: str, page: Any) -> None:
    maps = opened(page, f"{address}#minitx")
    shade = "() => getComputedStyle(document.body).backgroundColor"
    light = maps.root.locator("body").evaluate(shade)
    page.evaluate("document.body.classList.add('dark-mode')")
    maps.root.locator(":root[data-theme=dark]").wait_for()
    assert maps.root.locator("body").evaluate(shade) != light
    page.evaluate("document.body.classList.remove('dark-mode')")
    maps.root.locator(":root[data-theme=light]").wait_for()
    assert maps.root.locator("body").evaluate(shade) == light


def test_a_damaged_map_is_an_error_message(address: str, page: Any) -> None:
    maps = opened(page, link(address, run="strange", step=1))
    maps.settled("strange encoder/hostile 1")
    maps.key("]")
    maps.root.get_by_role("alert").get_by_text("damaged").wait_for()
    maps.key("[")
    maps.settled("strange encoder/hostile 1")
    assert maps.root.get_by_role("alert").count() == 0


def test_the_latest_step_is_followed_while_training_writes(address: str, page: Any, runs: Path) -> None:
    run = f"live{address[-3:-1]}"
    with SummaryWriter(str(runs / run)) as writer:

        def log(step: int) -> None:
            add_maps(writer, "encoder/x", built("encoder_only").attend("1 2").encoded()["encoder"], step)
            writer.flush()

        maps = opened(page, f"{address}#minitx")
        log(1)
        maps.root.get_by_label("run", exact=True).locator(f"option[value={run}]").wait_for(state="attached")
        maps.choose("run", run)
        maps.settled(f"{run} encoder/x 1")
        assert maps.root.get_by_label("follow latest").is_checked(), "until a step is chosen"
        log(2)
        maps.settled(f"{run} encoder/x 2")
        maps.root.get_by_label("follow latest").uncheck()
        log(3)
        steps = maps.root.get_by_label("step", exact=True).first
        page.wait_for_timeout(100)
        for _ in range(200):
            if steps.get_attribute("max") == "2":
                break
            page.wait_for_timeout(100)
        assert steps.get_attribute("max") == "2"
        maps.settled(f"{run} encoder/x 2")


def test_a_failed_request_is_retried(address: str, page: Any) -> None:
    failed: list[str] = []

    def fail_once(route: Any) -> None:
        if failed:
            route.continue_()
        else:
            failed.append(route.request.url)
            route.fulfill(status=404, content_type="application/json", body='{"error": "not yet"}')

    page.route("**/plugin/minitx/header*", fail_once)
    maps = opened(page, link(address, **REVERSE, kind="cross", step=2))
    assert failed
    maps.settled("cross/example_1 2")


def test_without_maps_the_page_names_the_key(page: Any, tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "run")) as writer:
        writer.add_scalar("loss", 1.0, 1)
    with tensorboard(tmp_path) as url:
        page.goto(f"{url}data/plugin_entry.html?name=minitx")  # without maps there is no tab
        page.get_by_role("alert").get_by_text("every_n_validations").wait_for()
