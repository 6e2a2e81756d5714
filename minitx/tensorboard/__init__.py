"""Attention maps in TensorBoard. No torch and no lightning here, so that TensorBoard starts quickly."""

from pathlib import Path

NAME = "minitx"
"""Of the plugin with the Attention tab: in event files, in URLs, in --samples_per_plugin."""
STATIC = Path(__file__).parent / "static"
"""The files of its page, which other pages use too."""
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
"""Types of the files of pages. The system's table of types declares modules plain text on some systems."""


def page_files(*folders: Path) -> dict[str, Path]:
    """The files of a page by name: a name in a request is looked up, and never used as a path."""
    return {file.name: file for folder in folders for file in folder.glob("*") if file.suffix in TYPES}
