"""The built documentation: no warnings, no request to another host, no page wider than a phone (mkdocs, chromium)."""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from minitx.config.schema import Config
from minitx.config.validation import keys
from minitx.data.tokenizers import SPECIAL_TOKENS
from pages import PAGES, ROOT, named
from web_pages import watched

PHONE, DESKTOP = (390, 844), (1300, 900)
CUT = """[...document.querySelectorAll("pre > code")].filter(code => code.scrollWidth > code.clientWidth)
    .map(code => code.textContent.slice(0, 60))"""

needs_mkdocs = pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="no mkdocs here (make docs)")
pytestmark = [pytest.mark.slow, needs_mkdocs]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built documentation; strict: a warning, a broken link or a missing anchor is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "WARNING" not in ran.stderr
    return folder


def test_every_key_of_the_config_has_a_row(site: Path) -> None:
    html = (site / "api" / "config.html").read_text()
    row = r'<tr>\s*<td><code id="([\w.]+)">(\w+)</code></td>\s*<td>(.+?)</td>.*?<td>.+?</td>'
    rows = re.findall(row, html, re.DOTALL)
    every = [key for key, field in keys(Config) if "." in key and not is_dataclass(field.annotation)]
    assert [key for key, _, _ in rows] == every
    assert [key.rpartition(".")[2] for key in every] == [name for _, name, _ in rows]
    assert "an integer of at least 1" in html
    assert "<code>{name: rope}</code>" in html


def test_the_api_has_its_entries_and_their_tokens(site: Path) -> None:
    """With their signatures. `<eos>` without backticks in a docstring would vanish as HTML."""
    html = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    entries = ("minitx.load", "minitx.Predictor", "minitx.nn.MultiHeadAttention", "minitx.nn.masks.causal")
    assert [name for name in entries if f'id="{name}"' not in html or f'"nf">{name.split(".")[-1]}<' not in html] == []
    assert [token for token in (*SPECIAL_TOKENS, "<name>", "<folder>") if token in html] == []


def test_pages_fit_and_request_no_other_host(site: Path, browser: Any) -> None:
    too_wide: dict[tuple[str, int], Any] = {}
    with watched(browser, "file:", "data:", "blob:") as page:
        for source, (width, height) in itertools.product(PAGES, (PHONE, DESKTOP)):
            page.set_viewport_size({"width": width, "height": height})  # before loading: a change is animated
            page.goto((site / named(source).replace(".md", ".html")).as_uri())
            if cut := page.evaluate(CUT):
                too_wide[named(source), width] = cut
            if (needed := page.evaluate("document.documentElement.scrollWidth")) > width:
                too_wide[named(source), width] = needed
            assert page.evaluate("[...document.images].every(image => !image.complete || image.naturalWidth)")
    assert too_wide == {}
