"""The page of the lens and of patching, opened from disk without network, at three widths and in both themes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from predictors import built
from web_pages import LOWEST_CONTRAST, watched

LENS = built("encoder_decoder").lens("0 2 6 6 1 3 0 1 2", "1 6 6 2 0 5 4 1 2")
HOSTILE = "</script><script>window.hacked = 1</script>"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tables")
    paths = {name: folder / f"{name}.html" for name in ("lens", "patch")}
    LENS.tokens[1] = HOSTILE
    LENS.save_html(paths["lens"])
    built("encoder_decoder").patch("0 2 6", "0 2 5", sites="heads", answers=("1", "2")).save_html(paths["patch"])
    return paths


@pytest.fixture(scope="module", params=[(1300, "light"), (800, "dark"), (390, "light")], ids=str)
def shared_page(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    width, scheme = request.param
    with watched(browser, "file:", viewport={"width": width, "height": 500}, color_scheme=scheme, offline=True) as page:
        yield page


@pytest.fixture
def page(shared_page: Any) -> Iterator[Any]:
    yield shared_page
    fits = shared_page.evaluate("[document.documentElement.scrollWidth <= innerWidth, window.hacked ?? null]")
    assert fits == [True, None], "only tables scroll sideways"


def test_cells_are_chosen_by_pointer_and_keys(page: Any, files: dict[str, Path]) -> None:
    page.goto(files["lens"].as_uri())
    tables = page.locator(".table")
    cells = tables.first.locator("tbody tr")
    assert (tables.count(), cells.count(), cells.first.locator("button").count()) == (2, 3, len(LENS.tokens))
    cells.nth(1).locator("button").first.click()
    assert page.locator(".detail h2").inner_text() == "layer 1, position 1: <bos>"
    listed = page.locator(".detail .row").first.locator("li")
    assert listed.count() == 10
    assert listed.locator(".token").all_inner_texts() == [token for token, _ in LENS.top("decoder")[1][0]]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.locator(".detail h2").inner_text() == f"layer 2, position 2: {HOSTILE}"
    assert f"rank {LENS.ranks('decoder')[2, 1]}," in page.locator(".detail .note").inner_text()
    page.keyboard.press("ArrowDown")  # there is no lower layer; rows of tokens and of attribution
    assert [page.locator(name).count() for name in (".table [aria-pressed]", ".detail .row")] == [1, 2]
    page.get_by_role("button", name="answer: rank and probability").click()
    assert cells.nth(2).locator("button").nth(1).inner_text() == f"#{LENS.ranks('decoder')[2, 1]}"
    assert "probability of the answer, whose rank" in page.locator(".legend").inner_text()
    before = page.evaluate("document.documentElement.dataset.theme")
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") != before


def test_a_focused_cell_is_below_no_bar_and_text_is_legible_on_every_cell(page: Any, files: dict[str, Path]) -> None:
    page.goto(files["patch"].as_uri())
    page.locator(".table td button").first.click()
    covered = """(({ left, right, top, bottom }) => !document.activeElement.contains(document.elementFromPoint(
        (left + right) / 2, (top + bottom) / 2)))(document.activeElement.getBoundingClientRect())"""
    for _ in range(3):
        for key in ["ArrowDown"] * 3 + ["ArrowUp"] * 3:
            page.keyboard.press(key)
            assert not page.evaluate(covered), key
        page.keyboard.press("Tab")  # to the next table
    assert page.locator(".table").count() == 3
    assert page.locator("td button").evaluate_all(LOWEST_CONTRAST) > 3.0
