"""`minitx list`: tasks, corpora, tokenizers, position schemes and bundled configs."""

import inspect
import textwrap
from typing import Any

from minitx.config import yaml_files
from minitx.config.registry import parameters
from minitx.data.tasks import TASKS
from minitx.data.text.corpora import CORPORA
from minitx.data.text.tokenizer_training import TOKENIZERS
from minitx.nn import POSITION_IDS, POSITIONS
from minitx.nn.positions import GIVEN


def listing(width: int | None = None) -> str:
    """Every registered name with the first line of its help and its options; every bundled config with its comment.

    `width` is that of a terminal: longer lines are wrapped, and their further lines indented.
    """
    registries: dict[str, Any] = {
        "data.name": TASKS,
        "data.path (or a file, a folder, owner/name on the hub)": CORPORA,
        "data.tokenizer.name": TOKENIZERS,
        "model.position.name": POSITIONS,
        "model.position_ids.name": POSITION_IDS,
    }
    lines: list[str] = []
    for key, registry in registries.items():
        lines.append(key)
        for name, entry in registry.items():
            summary = (inspect.getdoc(entry) or "").partition("\n")[0]
            options = [f"{option}={default}" for option, (_, default) in parameters(entry, frozenset(GIVEN)).items()]
            lines.append(f"  {name:<18} {summary}" + (f"  [{', '.join(options)}]" if options else ""))
    lines.append("--config (or a file)")
    for name, path in yaml_files.bundled().items():
        comment = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
        lines.append(f"  {name:<22} {comment}")
    if width is not None:
        wrapper = textwrap.TextWrapper(max(width, 40), subsequent_indent=" " * 8, break_long_words=False)
        lines = [*map(wrapper.fill, lines)]
    return "\n".join(lines)
