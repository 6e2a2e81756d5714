"""A page in a browser whose errors, and requests to other addresses, fail the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def watched(browser: Any, *addresses: str, failures: bool = False, **options: Any) -> Iterator[Any]:
    """A new page; its requests begin with one of the addresses, and may fail. Options are those of new_context."""
    context = browser.new_context(**{"viewport": {"width": 1300, "height": 900}, **options})
    page, troubles = context.new_page(), []
    page.on("request", lambda one: one.url.startswith(addresses) or troubles.append(one.url))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda entry: entry.type == "error" and not failures and troubles.append(entry.text))
    yield page
    context.close()
    assert not troubles
