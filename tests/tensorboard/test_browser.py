"""TensorBoard in a real browser, on a run that has just been trained. Skips where there is no chromium."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import CHROMIUM, WHY_SKIPPED, tensorboard

from minitx.cli.main import main

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_SKIPPED)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A TensorBoard that shows a short run of reversal."""
    runs = tmp_path_factory.mktemp("browser") / "runs"
    short = ["--trainer.max_steps", "4", "--trainer.val_every_n_steps", "2", "--data.test_size", "10"]
    main(["train", "--config", str(ROOT / "configs/reverse.yaml"), *short, "--run.folder", str(runs)])
    with tensorboard(runs) as url:
        yield url


def test_attention_maps_are_on_the_page(address: str, browser: Any, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 1400})
    page.goto(f"{address}#images", wait_until="networkidle")
    title = page.get_by_text("attention_cross/layer_2/example_1").first
    title.wait_for(timeout=60_000)
    page.wait_for_function(
        """() => {
            const found = [];
            const walk = (root) => root.querySelectorAll('*').forEach((node) => {
                if (node.tagName === 'IMG' && node.src.includes('individualImage')) found.push(node);
                if (node.shadowRoot) walk(node.shadowRoot);
            });
            walk(document);
            return found.length >= 2 && found.every((image) => image.complete && image.naturalWidth > 50);
        }""",
        timeout=60_000,
    )
    groups = page.inner_text("body")
    page.screenshot(path=tmp_path / "images.png")
    assert (tmp_path / "images.png").stat().st_size > 10_000
    assert "IMAGES" in groups.upper()


def test_answers_are_on_the_text_page(address: str, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 1400})
    page.goto(f"{address}#text", wait_until="networkidle")
    page.get_by_text("expected").first.wait_for(timeout=60_000)
    page.get_by_text("generated").first.wait_for(timeout=60_000)


def test_hyperparameters_and_final_figures_are_on_the_hparams_page(address: str, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 1400})
    page.goto(f"{address}#hparams", wait_until="networkidle")
    page.get_by_text("optimizer.lr").first.wait_for(timeout=60_000)
    page.get_by_text("final/exact_match").first.wait_for(timeout=60_000)
