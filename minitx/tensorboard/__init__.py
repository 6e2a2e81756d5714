"""Attention maps in TensorBoard. No torch and no lightning here, so that TensorBoard starts quickly."""

from pathlib import Path

NAME = "minitx"
"""Name of the plugin with the Attention tab, in event files, URLs and --samples_per_plugin."""
STATIC = Path(__file__).parent / "static"
"""Folder of the files of its page, which other pages use too."""
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
"""MIME types of the files of pages, by suffix. Those of some systems declare JavaScript modules plain text."""


def page_files(*folders: Path) -> dict[str, Path]:
    """The files of a page by name: a name in a request is looked up, and never used as a path."""
    return {file.name: file for folder in folders for file in folder.glob("*") if file.suffix in TYPES}
