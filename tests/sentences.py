"""Every sentence with which minitx refuses something, from its source; `python tests/sentences.py` writes them down.

A sentence names what was expected, what came, and which key, flag, argument or file to change.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import NamedTuple

from minitx.config.schema import Config
from minitx.generation.options import GenerationOptions

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "errors.md"
RAISED = ("ValueError", "SystemExit", "TypeError")
SECTIONS = "|".join([*Config.__dataclass_fields__])
PLACE = re.compile(rf"\b({SECTIONS})\.[a-z{{]|\b({SECTIONS}): |--[a-z]+")
"""A dotted key of a config, or a flag."""
CARRIERS = re.compile(
    r"\b(path|file|files|folder|place|where|source|patterns|section|name|key|keys|option|option_name|key_of|url)\b|_keys\("
)
"""Expressions that stand for one of them, or for a file."""


class Sentence(NamedTuple):
    """One that may be said."""

    file: str  # below minitx/
    line: int
    text: str  # what is filled in stands in braces
    filled: tuple[str, ...]  # the expressions in braces
    arguments: frozenset[str]  # of the functions around it, and of their class

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others, wherever it moves within its file."""
        return self.file, self.text

    def names_a_place(self) -> bool:
        """Whether it says which key, flag, argument or file to change."""
        if PLACE.search(self.text) or any(CARRIERS.search(part) for part in self.filled):
            return True
        words = {*re.findall(r"\w+", re.sub(r"\{.*?\}", "", self.text))}
        return bool(words & (self.arguments | {field.name for field in dataclasses.fields(GenerationOptions)}))


def sentences() -> list[Sentence]:
    """All of them, file by file."""
    found: list[Sentence] = []
    for file in sorted((ROOT / "minitx").rglob("*.py")):
        found += _in(file)
    return found


def _in(file: Path) -> list[Sentence]:
    found: list[Sentence] = []

    def walk(node: ast.AST, arguments: frozenset[str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = node.args
            arguments |= {argument.arg for argument in (*own.posonlyargs, *own.args, *own.kwonlyargs)} - {"self", "cls"}
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            called = node.exc
            if ast.unparse(called.func) in RAISED and called.args and (told := _told(called.args[0])) is not None:
                text, filled = told
                found.append(
                    Sentence(file.relative_to(ROOT / "minitx").as_posix(), node.lineno, text, filled, arguments)
                )
        for child in ast.iter_child_nodes(node):
            walk(child, arguments)

    walk(ast.parse(file.read_text()), frozenset())
    return found


def _told(node: ast.expr) -> tuple[str, tuple[str, ...]] | None:
    """A text with its blanks, and what fills them; None for a code that a process leaves with."""
    if isinstance(node, ast.Constant):
        return (node.value, ()) if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [_told(part) for part in node.values]
        told = [part for part in parts if part is not None]
        return "".join(text for text, _ in told), tuple(one for _, filled in told for one in filled)
    if isinstance(node, ast.FormattedValue):
        written = ast.unparse(node.value)
        return f"{{{written}}}", (written,)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _told(node.left), _told(node.right)
        if left is not None and right is not None:
            return left[0] + right[0], left[1] + right[1]
    if isinstance(node, ast.BinOp):  # 128 + a signal
        return None
    written = ast.unparse(node)
    return f"{{{written}}}", (written,)


def document(said: list[Sentence]) -> str:
    """docs/errors.md."""
    lines = [
        "# What minitx says when something does not fit",
        "",
        "Bad input gets one sentence and exit code 2, before any work. Each says what was expected, what came, and",
        "which key, flag, argument or file to change; what is filled in stands in braces here. This page is written by",
        "`python tests/sentences.py`, and a test compares it with the source.",
    ]
    for file in dict.fromkeys(one.file for one in said):
        lines += ["", f"## minitx/{file}", ""]
        lines += [
            f"- `{text}`" for text in dict.fromkeys(one.text.replace("`", "'") for one in said if one.file == file)
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(sentences()))
