"""`minitx list`: tasks, corpora, tokenizers, position schemes and bundled configs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from minitx.config import bundled
from minitx.data.tasks import TASKS
from minitx.data.text.corpora import CORPORA
from minitx.data.text.tokenizer_training import TOKENIZERS
from minitx.nn import POSITION_IDS, POSITIONS
from minitx.nn.positions import GIVEN

OPEN: Mapping[str, Mapping[str, Any]] = {
    "data": TASKS,
    "model.position": POSITIONS,
    "model.position_ids": POSITION_IDS,
}
"""The registered classes of each open section of a config."""

OTHERS = {*GIVEN, "self", "args", "kwargs"}
"""Arguments of a constructor that do not come from the section."""


def listing() -> str:
    """Every registered name with its first line of help and its options; every bundled config with its line."""
    lines: list[str] = []
    for key, registry in (
        ("data.name", TASKS),
        ("data.path (or a file, a folder, owner/name on the hub)", CORPORA),
        ("data.tokenizer.name", TOKENIZERS),
        ("model.position.name", POSITIONS),
        ("model.position_ids.name", POSITION_IDS),
    ):
        lines.append(key)
        for name, entry in registry.items():
            summary = (inspect.getdoc(entry) or "").splitlines()[0]
            options = [f"{option}={default}" for option, default in own_options(entry).items()]
            lines.append(f"  {name:<18} {summary}" + (f"  [{', '.join(options)}]" if options else ""))
    lines.append("--config (or a file)")
    lines += [f"  {name:<22} {bundled.summary(path)}" for name, path in bundled.configs().items()]
    return "\n".join(lines)


def own_options(entry: Any) -> dict[str, Any]:
    """The options that a section may give to a registered class, with their defaults; none for a function."""
    if not inspect.isclass(entry):
        return {}
    fields = dataclasses.fields(entry) if dataclasses.is_dataclass(entry) else ()
    made = {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
    parameters = inspect.signature(entry).parameters.values()
    return {p.name: made.get(p.name, p.default) for p in parameters if p.name not in OTHERS}
