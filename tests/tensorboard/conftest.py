"""What the tests in a browser share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browsing import CHROMIUM, QUIET


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A chromium without a window."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield running
        running.close()
