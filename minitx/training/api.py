"""minitx.train: training from Python, for notebooks and scripts; the same as the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from minitx.config.parser import Parser, config_parser, to_config
from minitx.config.schema import Config
from minitx.evaluation.report import evaluation_report, table
from minitx.training import init_from as initial
from minitx.training import run
from minitx.training.resume import resumed

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

    from minitx.inference.predictor import Predictor
    from minitx.training.folder import RunFiles


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


def train_config(config: Config, resume: bool = False) -> dict[str, Any]:
    """Train as training.run.train does, with everything that protects a run and all that it logs."""
    from minitx.training.callbacks.event_logger import RunLogger
    from minitx.training.resilience.disk import Disk
    from minitx.training.resilience.resume_checks import check_resume

    return run.train(config, resume, run.RunExtras(Disk, RunLogger, callbacks, check_resume, report))


def report(predictor: Predictor) -> tuple[dict[str, Any], str]:
    """Every figure of a trained model, and the same as a table."""
    figures = evaluation_report(predictor)
    return figures, table(figures)


def callbacks(config: Config, files: RunFiles) -> list[Callback]:
    """What protects a run and what it logs, as a config asks for it."""
    from minitx.training.callbacks.auto_compile import AutoCompile
    from minitx.training.callbacks.event_logger import LogResults
    from minitx.training.callbacks.log_attention import LogAttention
    from minitx.training.callbacks.log_embeddings import LogEmbeddings
    from minitx.training.callbacks.profiling import ProfileSteps
    from minitx.training.resilience.divergence import StopOnDivergence
    from minitx.training.resilience.memory import KeepFreedMemory
    from minitx.training.resilience.signals import StopOnSignal

    settings = config.trainer
    return [
        StopOnDivergence(config, files),
        LogAttention(config.log.attention),
        LogEmbeddings(config.log.embeddings),
        LogResults(),
        *([ProfileSteps(settings.profile)] if settings.profile else []),
        *([AutoCompile()] if settings.compile == "auto" and not settings.profile else []),
        StopOnSignal(files),
        KeepFreedMemory(),
    ]


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
    return train_config(config, resume)
