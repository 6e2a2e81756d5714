"""A process that trains one run after another, as it is told: a line of JSON in, a line of JSON out.

What the runs print goes to a log file beside each run.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError, RunFailed
from minitx.config.schema import Config, config_from_dict
from minitx.evaluation.report import length_report
from minitx.hardware.devices import machine
from minitx.inference.predictor import load
from minitx.sweeps.rows import Row, fingerprint
from minitx.training.api import train_config as train

COUNTED = ("steps", "seconds", "precision", "split", "examples")
"""What results.json says beside figures."""


def main() -> None:
    """Answer jobs (minitx.sweeps.plan.Point.job) until there are no more."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # whatever a library prints is no answer
        for line in sys.stdin:
            job = json.loads(line)
            with _printing_to(Path(job["log"])):
                answer = _answer(job)
            print(json.dumps(answer), file=answers, flush=True)


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    """The row of a run, or the sentence about what went wrong; its traceback goes to the log."""
    try:
        return {"row": carry_out(job)}
    except Exception as error:
        traceback.print_exc()
        words = str(error).strip().splitlines()
        sentence = words[0] if words else type(error).__name__
        return {
            "error": sentence if isinstance(error, ConfigError | RunFailed) else f"{type(error).__name__}: {sentence}"
        }


@contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    """Standard output and errors of this process, libraries included, go to the end of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    before = [os.dup(number) for number in (1, 2)]
    try:
        with path.open("a") as log:
            for number in (1, 2):
                os.dup2(log.fileno(), number)
        yield
    finally:
        sys.stdout.flush()
        for number, kept in zip((1, 2), before, strict=True):
            os.dup2(kept, number)
            os.close(kept)


def carry_out(job: dict[str, Any]) -> Row:
    """Train a run, or go on with it, or read what it has found already; measure it by length if that is asked for."""
    config = config_from_dict(job["config"])
    folder = trained(config)
    found = json.loads((folder / "results.json").read_text())
    asked, by_length = job["lengths"], None
    if asked is not None:
        by_length = length_report(load(folder), range(asked[0], asked[1] + 1), found["split"])
    cost = job["cost"]
    return {
        "settings": job["settings"],
        "seed": job["seed"],
        "fingerprint": fingerprint(config.to_dict()),
        "folder": str(folder),
        "lengths": asked,
        "figures": {
            key: value for key, value in found.items() if key not in COUNTED and isinstance(value, float | int)
        },
        "by_length": by_length,
        **{key: found[key] for key in COUNTED},
        "parameters": cost["parameters"],
        "flops_per_step": cost["flops"],
        "flops": cost["flops"] * found["steps"],
        "machine": machine(),
        "config": config.to_dict(),
    }


def trained(config: Config) -> Path:
    """The folder of this experiment, trained to its end now or before."""
    root = Path(config.run.folder) / config.run.name
    ours = [folder for folder in checkpoint.versions(root) if _is_of(config, folder)]
    done = [folder for folder in ours if (folder / "results.json").exists()]
    if done:
        return done[-1]
    begun = [folder for folder in checkpoint.versions(root) if (folder / "last.ckpt").exists()]
    train(config, resume=bool(begun) and begun[-1] in ours)  # to resume is to go on with the newest
    return [folder for folder in checkpoint.versions(root) if (folder / "results.json").exists()][-1]


def _is_of(config: Config, folder: Path) -> bool:
    """Whether a run's folder is of this experiment."""
    file = folder / "config.yaml"
    return file.exists() and fingerprint(yaml.safe_load(file.read_text())) == fingerprint(config.to_dict())


if __name__ == "__main__":
    main()
