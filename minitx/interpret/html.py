"""Attention maps as one HTML file that needs nothing else: no network, no server. Its script is the Attention tab's.

The page is a few tags, a style sheet, the modules of minitx/tensorboard/static joined into one script, and the maps:
JSON whose text cannot end the script it stands in.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from minitx.config.errors import ConfigError

Runs = Mapping[str, Mapping[str, Sequence[bytes]]]
"""By run, then by tag (kind/example): the header and the maps, as format.encode gives them."""

_IMPORT = re.compile(r'^import (\{.*?\}) from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const|let) (\w+))", re.MULTILINE)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attention maps</title>
<script>{guard}</script>
<style>{style}</style>
</head>
<body>
<noscript>These attention maps are drawn by JavaScript, which is switched off here.</noscript>
<script type="application/json" id="maps">{maps}</script>
<script>{script}</script>
</body>
</html>
"""
_GUARD = """{{
  const policy = document.createElement("meta");
  policy.setAttribute("ht" + "tp-equiv", "Content-Security-Policy");
  policy.content = "{policy}";
  document.head.append(policy);
}}"""


def page(runs: Runs) -> str:
    """The whole page.

    A content security policy lets it run its own script and nothing else, and fetch nothing. It is set by the first
    line of script, so that no address and no word that looks like one stands in the file.

    Args:
        runs: the maps.

    Raises:
        ConfigError: there are none.
    """
    if not any(runs.values()):
        raise ConfigError("there are no attention maps to show: this model has no attention")
    script = f"(async () => {{\n{_joined('offline.js')}\nawait module_offline.start();\n}})();"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:"
    return _PAGE.format(
        guard=_GUARD.format(policy=policy), style=_static("page.css"), maps=_embedded(runs), script=script
    )


def frame(runs: Runs, height: int = 720) -> str:
    """The page within a frame of its own, for a notebook; it can neither reach the notebook nor the network."""
    return (
        f'<iframe srcdoc="{html.escape(page(runs))}" sandbox="allow-scripts allow-downloads" title="attention maps" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe>'
    )


def _embedded(runs: Runs) -> str:
    """Maps as JSON in ASCII, without what would mean something to a reader of HTML."""
    maps = {
        run: {tag: {"0": [json.loads(header), *map(_text, rest)]} for tag, (header, *rest) in tags.items()}
        for run, tags in runs.items()
    }
    text = json.dumps({"runs": maps}, separators=(",", ":"))
    return re.sub(r"<|h(?=ttp)", lambda found: f"\\u{ord(found[0]):04x}", text, flags=re.IGNORECASE)


def _text(packed: bytes) -> str:
    return base64.b64encode(packed).decode()


def _static(name: str) -> str:
    return files("minitx.tensorboard").joinpath("static", name).read_text(encoding="utf-8")


def _joined(entry: str) -> str:
    """A module and all that it imports as one script: each module becomes a constant that holds what it exports."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        done[name] = ""  # a circle of imports would otherwise never end
        text = _static(name)
        for _, imported in _IMPORT.findall(text):
            add(imported)
        body = _IMPORT.sub(lambda found: f"const {found[1]} = {_constant(found[2])};\n", text)
        exports = ", ".join(export for _, export in _EXPORT.findall(body))
        body = _EXPORT.sub(r"\1", body)
        del done[name]
        done[name] = f"const {_constant(name)} = (() => {{\n{body}return {{ {exports} }};\n}})();"

    add(entry)
    return "\n".join(done.values())


def _constant(name: str) -> str:
    return f"module_{name.removesuffix('.js')}"
