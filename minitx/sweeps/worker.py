"""A trial of a sweep, in its own process: its runs are trained, resumed or read, and measured."""

import json
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.locks import locked
from minitx.config.errors import ConfigError, RunFailed, first_line
from minitx.config.schema import Config, config_from_dict
from minitx.config.yaml_files import read
from minitx.data.tasks import Task
from minitx.data.tokenizers import Tokenizer
from minitx.evaluation.report import length_report
from minitx.hardware.machine import machine
from minitx.inference.predictor import load
from minitx.sweeps.plan import data_key, fingerprint, run_digest, start_digest
from minitx.sweeps.tables import Row
from minitx.sweeps.trials import COMPLETE, FAIL, PRUNED, ClaimedTrial, TrialPruned
from minitx.training.api import AllExtras, train_config
from minitx.training.describe import cost, typical_batch
from minitx.training.module import Callback
from minitx.training.start import is_on_data

NOT_METRICS = ("steps", "seconds", "precision", "split", "examples")
"""Keys of results.json that are not metrics; they become keys of the row."""


def work(trial: ClaimedTrial) -> None:
    """Run the remaining seeds of a trial and end it: after an error, with a sentence; the log has the whole error."""
    try:
        for seed in trial.seeds[len(trial.rows) :]:
            folder = trial.plan.run_folder(trial.settings, seed)
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder, wait=True):  # another trial with these settings may be training the run
                trial.add(run(trial, seed))
        trial.end(COMPLETE)
    except TrialPruned:
        trial.end(PRUNED)
    except (ConfigError, RunFailed) as error:
        print(error, file=sys.stderr)
        trial.end(FAIL, first_line(error))
    except Exception as error:
        traceback.print_exc()
        trial.end(FAIL, first_line(error, with_class=True))


class _ReportValidations(Callback):
    state_key = "Sweep"

    def __init__(self, trial: ClaimedTrial, start: str) -> None:
        self.trial, self.start = trial, start

    def state_dict(self) -> dict[str, str]:
        """The state that last.ckpt keeps: the digest of the checkpoint that the run started from."""
        return {"start": self.start}

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        steps = module.config.trainer.max_steps
        self.trial.report(trainer.global_step + len(self.trial.rows) * steps, module.selection, steps)


def run(trial: ClaimedTrial, seed: int) -> Row:
    """Train, resume or read a run, and measure it by length if the sweep has lengths.

    Returns a row of the table as plain JSON types: figures on the held-out split, and as "score" the
    figure by which best.ckpt was selected.
    """
    config, task, model, origin, _ = trial.plan.resolved(trial.settings, seed)
    start = start_digest(origin)
    digest = run_digest(config, task, start)
    if trial.plan.digests.get(data_key(config), digest) != digest:
        parts = {"the data": True, "a file of imports": config.imports, "run.init_from": start}
        changed = " or ".join(part for part, used in parts.items() if used)
        raise ConfigError(f"{changed} has changed during the sweep: repeat the command to restart it")
    parameters, _, flops_per_step = cost(config, model, typical_batch(config, task))
    folder = trained(config, task, start, trial)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    lengths = trial.plan.lengths
    by_length = {} if lengths is None else length_report(load(folder), lengths, results["split"])
    callbacks = checkpoint.read(folder / "last.ckpt")["callbacks"]
    score = next(state["best_model_score"] for name, state in callbacks.items() if name.startswith("BestCheckpoint"))
    figures = {key: value for key, value in results.items() if key not in NOT_METRICS}
    return {
        **{"settings": trial.settings, "seed": seed, "score": float(score), "folder": str(folder)},
        **{key: results[key] for key in NOT_METRICS},
        "figures": {key: value for key, value in figures.items() if isinstance(value, float | int)},
        "by_length": {str(length): part for length, part in by_length.items()},
        **{"parameters": parameters, "flops_per_step": flops_per_step, "flops": flops_per_step * results["steps"]},
        "machine": machine(),
    }


def trained(config: Config, task: Task, start: str, trial: ClaimedTrial) -> Path:
    """The folder of the finished run with this config, data and start, trained or resumed if there is none."""
    root, wanted = Path(config.run.folder) / config.run.name, fingerprint(config.to_dict())

    def versions(file: str) -> list[Path]:
        return [folder for folder in checkpoint.versions(root) if (folder / file).exists()]

    def on_this_data(folder: Path) -> bool:
        try:
            contents = checkpoint.read(folder / "last.ckpt")
            saved = contents.get("callbacks", {}).get(_ReportValidations.state_key, {})
            same_start = saved.get("start", start) == start  # absent from old checkpoints
            return same_start and is_on_data(contents, Tokenizer.from_dict(contents["minitx"]["tokenizer"]), task)
        except ConfigError:  # missing or damaged: reported when it is resumed or its scores are read
            return True

    def is_same(folder: Path) -> bool:
        with suppress(ConfigError):  # the config of another minitx; keys that it lacks have their defaults
            saved = config_from_dict(read(str(folder / "config.yaml")))
            return fingerprint(saved.to_dict()) == wanted and on_this_data(folder)
        return False

    same = [folder for folder in versions("config.yaml") if is_same(folder)]
    if finished := [folder for folder in same if (folder / "results.json").exists()]:
        return finished[-1]
    resume = bool(saved := versions("last.ckpt")) and saved[-1] in same
    train_config(config, resume, extras=AllExtras(_ReportValidations(trial, start)))
    return versions("results.json")[-1]
