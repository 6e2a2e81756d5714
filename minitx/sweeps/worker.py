"""The process of one run of a sweep: a job as JSON on standard input, a line of JSON on standard output."""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import yaml

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError, RunFailed
from minitx.config.schema import Config, config_from_dict
from minitx.evaluation.report import length_report
from minitx.extensions.python_files import with_imports
from minitx.hardware.machine import machine
from minitx.inference.predictor import load
from minitx.sweeps.pool import Job
from minitx.sweeps.rows import Row, fingerprint
from minitx.training.api import train_config

NOT_METRICS = ("steps", "seconds", "precision", "split", "examples")
"""Keys of results.json that are no metrics; they become keys of the row."""


def main() -> None:
    """Run the job and print {"row": ...}, or {"error": ...} with a traceback in the log."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # the output of libraries is not part of the answer
        try:
            answer: dict[str, Any] = {"row": run(json.load(sys.stdin))}
        except Exception as error:
            traceback.print_exc()
            sentence = next(iter(str(error).strip().splitlines()), "")
            if not isinstance(error, ConfigError | RunFailed):
                sentence = f"{type(error).__name__}: {sentence}"
            answer = {"error": sentence}
        print(json.dumps(answer), file=answers)


def run(job: Job) -> Row:
    """Train, resume or read a run, and measure it by length if the job has lengths."""
    folder = trained(config_from_dict(with_imports(job["config"])))
    results = json.loads((folder / "results.json").read_text())
    lengths, by_length = job["lengths"], None
    if lengths is not None:
        by_length = length_report(load(folder), range(lengths[0], lengths[1] + 1), results["split"])
    metrics = {key: value for key, value in results.items() if key not in NOT_METRICS}
    return {
        **{key: value for key, value in job.items() if key != "log"},
        **{key: results[key] for key in NOT_METRICS},
        "folder": str(folder),
        "figures": {key: value for key, value in metrics.items() if isinstance(value, float | int)},
        "by_length": by_length,
        "flops": job["flops_per_step"] * results["steps"],
        "machine": machine(),
    }


def trained(config: Config) -> Path:
    """The folder of the finished run with this config, trained or resumed if there is none."""
    root, wanted = Path(config.run.folder) / config.run.name, fingerprint(config.to_dict())

    def versions(file: str) -> list[Path]:
        return [folder for folder in checkpoint.versions(root) if (folder / file).exists()]

    def same_config(folder: Path) -> bool:
        file = folder / "config.yaml"
        return file.exists() and fingerprint(yaml.safe_load(file.read_text())) == wanted

    if finished := [folder for folder in versions("results.json") if same_config(folder)]:
        return finished[-1]
    started = versions("last.ckpt")  # resuming continues the newest of them
    train_config(config, resume=bool(started) and same_config(started[-1]))
    return versions("results.json")[-1]


if __name__ == "__main__":
    main()
