"""Tables of the config's keys for docs/api/config.md, from the schema; a hook of mkdocs."""

import dataclasses
from typing import Any

from minitx.cli.config_parser import documented_keys
from minitx.config.validation import expected, shown

MARK = "<!-- keys -->"
HEAD = ["key", "value", "default", "meaning"]


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Put the tables in the place of MARK."""
    return markdown.replace(MARK, f'<div class="keys" markdown>\n{tables()}\n</div>') if MARK in markdown else markdown


def tables() -> str:
    """A heading and a table for each section."""
    parts: dict[str, list[str]] = {}
    for key, field, text in documented_keys():
        if dataclasses.is_dataclass(field.annotation):
            parts[key] = [f"\n## {key}\n\n{text}\n", _row(HEAD), _row(["---"] * len(HEAD))]
            continue
        section, _, name = key.rpartition(".")
        if not section:
            parts[key] = [f"\n## {key}\n\n{text}\n"]
            continue
        default = shown(field.get_default(call_default_factory=True)).replace("'", "")
        name = f'<code id="{key}">{name}</code>'
        values, _, example = expected(field).replace("'", "`").partition(", e.g. ")
        values += f", e.g. `{example}`" if example else ""
        parts[section].append(_row([name, values, f"`{default}`", text]))
    return "\n".join(line for lines in parts.values() for line in lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
