"""Attention maps, and tables of layers by tokens, as one HTML file that works without network or server.

The page is a few tags, a style sheet, modules of minitx/tensorboard/static as one script, and the data as JSON, escaped
so that they cannot end their script element.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitx.checkpoints.atomic_files import written_whole
from minitx.config.errors import ConfigError
from minitx.interpret.encoded_maps import by_tag
from minitx.tensorboard import STATIC
from minitx.tensorboard.map_format import MAX_LABEL_LENGTH, shortened

if TYPE_CHECKING:
    from minitx.interpret.attention_maps import AttentionMaps

Runs = Mapping[str, Mapping[str, Sequence[bytes]]]
"""By run, then by tag (kind/example): the header and the maps, from map_format.encode."""

_IMPORT = re.compile(r'^import \{.*?\} from "\./([\w.]+)";\n', re.MULTILINE)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page needs JavaScript, which is disabled here.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page(runs: Runs) -> str:
    """The page of attention maps.

    Raises:
        ConfigError: no maps.
    """
    if not any(runs.values()):
        raise ConfigError("there are no attention maps to show: this model has no attention")
    return document("Attention maps", "offline.js", {"runs": embedded(runs), "order": [*runs]})


def save_maps(maps: "AttentionMaps", path: str | Path, beside: Mapping[str, "AttentionMaps"]) -> None:
    """Save the page of these maps and others by name; a ConfigError if two have the same name."""
    if maps.name in beside:
        raise ConfigError(f"beside: {maps.name!r} is the name of these maps themselves, choose another")
    text = page({name: by_tag(each) for name, each in {maps.name: maps, **beside}.items()})
    with written_whole(path) as file:
        file.write(text.encode())


def embedded(runs: Runs) -> dict[str, Any]:
    """Maps as JSON, of one step: run, tag, step, then the header and each map in base64."""
    return {
        run: {tag: {"0": [json.loads(header), *map(_base64, rest)]} for tag, (header, *rest) in tags.items()}
        for run, tags in runs.items()
    }


def document(title: str, module: str, data: Any) -> str:
    """A page that runs `start` of a module on data, plain JSON types.

    Its content security policy allows its own script and style, and no requests.
    """
    script = f"(async () => {{\n{_bundled(module, set())}\nawait start();\n}})();"
    digest = _base64(hashlib.sha256(script.encode()).digest())
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:"
    escaped = json.dumps(data, separators=(",", ":")).replace("<", r"\u003c")
    style = (STATIC / "page.css").read_text(encoding="utf-8")
    return _PAGE.format(title=title, policy=policy, style=style, data=escaped, script=script)


def frame(document: str, title: str = "attention maps") -> str:
    """A page in a sandboxed frame for a notebook, without access to the notebook or the network."""
    rules = 'sandbox="allow-scripts allow-downloads" style="width: 100%; height: 720px; border: 0"'
    return f'<iframe srcdoc="{html.escape(document)}" {rules} title="{title}"></iframe>'


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bundled(module: str, done: set[str]) -> str:
    """A module after those that it imports, each once and all in one scope: no two may define the same name."""
    if module in done:
        return ""
    done.add(module)
    text = (STATIC / module).read_text(encoding="utf-8")
    imported = "".join(_bundled(name, done) for name in _IMPORT.findall(text))
    return imported + re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)


class Tables:
    """Base of results that are shown as tables of layers or heads by tokens, see tables.js."""

    def page(self) -> str:
        """The page as text."""
        raise NotImplementedError

    def save_html(self, path: str | Path) -> None:
        """Save the page, usable without a network."""
        with written_whole(path) as file:
            file.write(self.page().encode())

    def save_image(self, path: str | Path) -> None:
        """Save an image as PNG, PDF or SVG, by the ending of the path."""
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """Save the page or an image, by the ending of the path."""
        (self.save_html if Path(path).suffix.lower() == ".html" else self.save_image)(path)

    def _repr_html_(self) -> str:
        return frame(self.page(), "tables of layers by tokens")


def table(name: str, note: str, rows: Sequence[str], columns: Sequence[str], cells: Any) -> dict[str, Any]:
    """One table of a page, as tables.js expects it."""
    columns = [shortened(column, MAX_LABEL_LENGTH) for column in columns]
    return {"name": name, "note": note, "rows": rows, "columns": columns, "cells": cells}
