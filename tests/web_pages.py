"""A page in a browser whose errors, and requests to other addresses, fail the test; the data of an offline page."""

import json
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


def page_data(page: str) -> dict[str, Any]:
    """The data of an offline page, in which nothing can be markup."""
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert data.isascii()
    assert "<" not in data
    return dict(json.loads(data))
