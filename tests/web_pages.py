"""A page in a browser whose errors, and requests to other addresses, fail the test; the data of an offline page."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOWEST_CONTRAST = """(all) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const luminance = (fillStyle) => {
        Object.assign(canvas, { fillStyle }).fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((part) => part / 255)
            .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    return Math.min(...all.map((one) => getComputedStyle(one)).map((style) => {
        const [low, high] = [style.color, style.backgroundColor].map(luminance).sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    }));
}"""
"""Of the text of elements on their own background."""


@contextmanager
def watched(browser: Any, *addresses: str, failures: bool = False, **options: Any) -> Iterator[Any]:
    """A new page, which takes longer than a view of it: several tests share one. Its requests begin with one of the
    addresses, and may fail. Options are those of new_context."""
    context = browser.new_context(**{"viewport": {"width": 1300, "height": 900}, **options})
    page, troubles = context.new_page(), []

    def note(trouble: object) -> None:
        troubles.append(f"{os.environ['PYTEST_CURRENT_TEST']}: {trouble}")

    page.on("request", lambda one: one.url.startswith(addresses) or note(one.url))
    page.on("pageerror", note)
    page.on("console", lambda entry: entry.type == "error" and not failures and note(entry.text))
    yield page
    context.close()
    assert not troubles


def eventually(root: Any, expression: str) -> None:
    """Wait until JavaScript holds; Playwright looks less often, or by an eval, which our page forbids."""
    waited = """async () => {
        const end = performance.now() + 60_000;
        for (; performance.now() < end; await new Promise((look) => setTimeout(look, 5))) if (HOLDS) return true;
    }"""
    assert root.locator("body").evaluate(waited.replace("HOLDS", expression)), f"never true: {expression}"


def page_data(page: str) -> dict[str, Any]:
    """The data of an offline page, in which nothing can be markup."""
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert data.isascii()
    assert "<" not in data
    return dict(json.loads(data))
