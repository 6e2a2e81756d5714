"""minitx.train: training from Python, for notebooks and scripts; the same as the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from minitx.config.parser import Parser, config_parser, to_config
from minitx.training import init_from as initial
from minitx.training import run
from minitx.training.resume import resumed


def train(
    config: str | Path,
    changes: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    init_from: str | Path | None = None,
) -> dict[str, Any]:
    """Train a model as `minitx train --config CONFIG` does.

    Args:
        config: a YAML file, or the name of a bundled config (`minitx list`).
        changes: keys and their values, as on the command line: {"trainer.max_steps": 300}.
        resume: go on with the newest run of this name instead of starting another.
        init_from: a checkpoint file or run folder: begin a new run with its weights.

    Returns:
        The figures of results.json.

    Raises:
        ValueError: a key or a value that does not fit, or a config that cannot be run; before any work.
        RunFailed: training diverged, or its outcome could not be written.
    """
    words = ["--config", str(config)]
    for key, value in (changes or {}).items():
        words += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    parser = config_parser()
    return run_parsed(parser, parser.parse_args(words), resume, None if init_from is None else str(init_from))


def run_parsed(parser: Parser, parsed: Namespace, resume: bool, init_from: str | None) -> dict[str, Any]:
    """Train what a config_parser has parsed.

    Keys of `model` that nobody has said are those of the checkpoint that the run begins or goes on with.

    Raises:
        ValueError: see train.
    """
    config = to_config(parser, parsed)
    if resume and init_from:
        raise ValueError("--init_from begins a new run and --resume goes on with an old one: give one of them")
    path = init_from or config.run.init_from
    if path or resume:
        begun = initial.source(path).config if path and not resume else resumed(config).config
        parser.set_defaults({f"model.{key}": value for key, value in begun.to_dict()["model"].items()})
        config = to_config(parser, parser.parse_args(parser.words))
    if path and not resume:
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, init_from=path))
    return run.train(config, resume)
