"""minitx.train: training from Python, for notebooks and scripts; the same as the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minitx.options import config_parser, to_config
from minitx.training import run


def train(config: str | Path, changes: Mapping[str, Any] | None = None, *, resume: bool = False) -> dict[str, Any]:
    """Train a model as `minitx train --config CONFIG` does.

    Args:
        config: a YAML file, or the name of a bundled config (`minitx list`).
        changes: keys and their values, as on the command line: {"trainer.max_steps": 300}.
        resume: go on with the newest run of this name instead of starting another.

    Returns:
        The figures of results.json.

    Raises:
        ValueError: a key or a value that does not fit, or a config that cannot be run; before any work.
    """
    words = ["--config", str(config)]
    for key, value in (changes or {}).items():
        words += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    parser = config_parser()
    return run.train(to_config(parser, parser.parse_args(words)), resume)
