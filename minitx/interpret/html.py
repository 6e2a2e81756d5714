"""Attention maps as one HTML file that works without network or server, with the script of the Attention tab.

The page is a few tags, a style sheet, the modules of minitx/tensorboard/static bundled into one script, and the maps as
JSON, escaped so that they cannot end their script element.
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
"""By run, then by tag (kind/example): the header and the maps, from map_format.encode."""

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
<noscript>These attention maps need JavaScript, which is disabled here.</noscript>
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
    """The page.

    A content security policy allows its own script and nothing else, and no requests. The first script sets it, so that
    no address, and no word that looks like one, is in the file.

    Raises:
        ConfigError: no maps.
    """
    if not any(runs.values()):
        raise ConfigError("there are no attention maps to show: this model has no attention")
    script = f"(async () => {{\n{_bundle('offline.js')}\nawait module_offline.start();\n}})();"
    digest = _base64(hashlib.sha256(script.encode()).digest())
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:"
    return _PAGE.format(
        guard=_GUARD.format(policy=policy), style=_static("page.css"), maps=_embedded(runs), script=script
    )


def frame(runs: Runs, height: int = 720) -> str:
    """The page in a sandboxed frame for a notebook, without access to the notebook or the network."""
    return (
        f'<iframe srcdoc="{html.escape(page(runs))}" sandbox="allow-scripts allow-downloads" title="attention maps" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe>'
    )


def _embedded(runs: Runs) -> str:
    """The maps as JSON in ASCII, with `<` and `http` escaped."""
    maps = {
        run: {tag: {"0": [json.loads(header), *map(_base64, rest)]} for tag, (header, *rest) in tags.items()}
        for run, tags in runs.items()
    }
    text = json.dumps({"runs": maps}, separators=(",", ":"))
    return re.sub(r"<|h(?=ttp)", lambda found: f"\\u{ord(found[0]):04x}", text, flags=re.IGNORECASE)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _static(name: str) -> str:
    return files("minitx.tensorboard").joinpath("static", name).read_text(encoding="utf-8")


def _bundle(entry: str) -> str:
    """A module and its imports as one script: each module becomes a constant that holds its exports."""
    constants: dict[str, str] = {}

    def add(name: str) -> None:
        if name in constants:
            return
        constants[name] = ""  # ends the recursion of circular imports
        text = _static(name)
        for _, imported in _IMPORT.findall(text):
            add(imported)
        body = _IMPORT.sub(lambda found: f"const {found[1]} = module_{found[2].removesuffix('.js')};\n", text)
        exports = ", ".join(export for _, export in _EXPORT.findall(body))
        body = _EXPORT.sub(r"\1", body)
        del constants[name]  # to be defined after its imports
        constants[name] = f"const module_{name.removesuffix('.js')} = (() => {{\n{body}return {{ {exports} }};\n}})();"

    add(entry)
    return "\n".join(constants.values())
