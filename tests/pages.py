"""Fenced blocks of the documentation, and the commands in console blocks."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r'^(```+)(\w*)(?:[^\n]*title="([^"]+)")?[^\n]*\n(.*?)^\1$', re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    language: str
    title: str
    text: str


class Command(NamedTuple):
    """One line after a `$`, and the output that the page shows."""

    words: list[str]
    shown: list[str]


def named(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def blocks(page: Path) -> list[Block]:
    return [Block(language, title, text) for _, language, title, text in FENCE.findall(page.read_text())]


def commands(block: Block) -> list[Command]:
    """The commands of a console block with their output; a backslash continues a line."""
    found: list[Command] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append(Command(shlex.split(line[2:], comments=True), []))
        elif line.strip() and found:
            found[-1].shown.append(line.rstrip())
    return found


def typed(block: Block) -> list[list[str]]:
    """The words of every minitx command of a shell block, which has no prompts and no output."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("minitx ")]
