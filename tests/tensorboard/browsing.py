"""The page of attention maps in a browser, alone or in a TensorBoard process."""

import re
from typing import Any

from web_pages import eventually


class Maps:
    """The page of attention maps, in a page of the browser or in a frame of it."""

    def __init__(self, root: Any, page: Any) -> None:
        self.root, self.page = root, page
        self.settled()

    def settled(self, view: str = "") -> None:
        """Wait until a view is drawn, such as run, kind/example and step."""
        eventually(self.root, f"document.body.dataset.drawn?.includes('{view}')")

    def alerted(self, text: str) -> None:
        """Wait for an error message with a text; with none, until there is no message."""
        shown = "[...document.querySelectorAll('[role=alert]')].find((one) => one.checkVisibility())?.textContent ?? ''"
        eventually(self.root, f"({shown}).includes('{text}')" if text else f"({shown}) === ''")

    def follow(self, view: str) -> None:
        """Follow a link into the same window."""
        self.page.evaluate("view => { delete document.body.dataset.drawn; location.hash = view }", view)
        self.settled()

    def choose(self, label: str, value: str) -> None:
        self.root.get_by_label(label, exact=True).select_option(value)

    def key(self, key: str) -> None:
        """Press a key with the focus in the page's frame."""
        self.root.get_by_label("run", exact=True).press(key)

    def press(self, name: str) -> None:
        self.root.get_by_role("button", name=name, exact=True).click()

    def kind(self, name: str) -> None:
        self.press(name)
        self.settled(f" {name}/")

    def tiles(self) -> list[str]:
        """The heads in display order, as layer:head from zero."""
        return list(self.root.locator(".tile").evaluate_all("all => all.map((one) => one.dataset.tile)"))

    def enlarge(self, layer: int, head: int) -> None:
        self.root.locator(f'[data-tile="{layer}:{head}"]').click()
        self.root.locator(".detail .matrix").first.wait_for()

    @property
    def title(self) -> str:
        return str(self.root.locator(".detail h2").inner_text())

    def hover(self, row: int, column: int, figure: int = 0) -> None:
        place = self.root.locator(".matrix").nth(figure).get_attribute("data-geometry")
        left, top, cell = (float(part) for part in place.split())
        overlay = self.root.locator(".matrix .overlay").nth(figure)
        overlay.hover(position={"x": left + (column + 0.5) * cell, "y": top + (row + 0.5) * cell})

    def weights(self, row: int, column: int) -> list[float]:
        """The weights in the readout when the pointer is at a cell, one for each shown map."""
        self.hover(row, column)
        readout = self.root.locator(".readout")
        assert re.search(rf"query {row + 1}\b.*key {column + 1}\b", readout.inner_text(), re.DOTALL)
        return [float(weight) for weight in readout.get_attribute("data-weight").split()]

    def row(self) -> dict[int, float]:
        """The listed keys of the marked query, with their weights."""
        lines = self.root.locator(".row").first.locator("li")
        return dict(lines.evaluate_all("all => all.map(({ dataset }) => [+dataset.key, +dataset.weight])"))

    def canvas(self, tile: str) -> Any:
        """A small map once it is drawn, which is after the page knows that it is in view."""
        eventually(self.root, f"document.querySelector('[data-tile=\"{tile}\"] canvas').width > 1")
        return self.root.locator(f'[data-tile="{tile}"] canvas').first

    def pixel(self, tile: str, x: int, y: int) -> tuple[int, ...]:
        """A pixel of a small map: as these are drawn, one for each weight."""
        read = "(one, [x, y]) => [...one.getContext('2d').getImageData(x, y, 1, 1).data]"
        return tuple(self.canvas(tile).evaluate(read, [x, y]))
