"""Every run of a sweep as a checked config, before the first one starts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minitx.config.errors import ConfigError
from minitx.config.schema import config_from_dict
from minitx.config.yaml_files import overridden
from minitx.evaluation.report import length_range
from minitx.extensions.python_files import with_imports
from minitx.sweeps.grid import combinations, slug
from minitx.sweeps.pool import Job
from minitx.sweeps.rows import fingerprint
from minitx.training.api import resolved
from minitx.training.choices.timing import first_batch
from minitx.training.describe import cost
from minitx.training.folder import run_root


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep."""

    name: str
    folder: Path
    keys: tuple[str, ...]
    jobs: tuple[Job, ...]  # one for each run: the input of its worker
    lengths: range | None
    trained: tuple[int, int] | None  # the lengths of training, where all settings share them


def plan(
    values: Mapping[str, Any], grid: dict[str, list[str]], seeds: int, lengths: str | None = None, first_seed: int = 1
) -> Plan:
    """Plan the runs <run.folder>/<run.name>_sweep/<settings>/seed1/v0, ...

    The seeds are first_seed, first_seed + 1, ...; each run is also measured at the lengths "from:to".
    """
    if seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {seeds}")
    values = with_imports(values)
    base = config_from_dict(values)
    folder = run_root(base).with_name(f"{base.run.name}_sweep")
    jobs: list[Job] = []
    measured: range | None = None
    trained: set[tuple[int, int] | None] = set()
    for settings in combinations(grid):
        config, task, model, *_ = resolved(overridden(values, settings))
        for key, value in (("num_nodes", config.trainer.num_nodes), ("devices", config.trainer.devices)):
            if value not in ("auto", 1, "1"):
                advice = "each run uses one device, --jobs N trains N at once"
                raise ConfigError(f"trainer.{key} must be 1 in a sweep, got {value}: {advice}")
        measured = None if lengths is None else length_range(lengths, task)
        trained.add(task.trained_lengths)
        task.examples("validation", 1)  # raises if the task has too few different examples
        parameters, _, flops = cost(config, model, first_batch(config, task))
        for seed in range(first_seed, first_seed + seeds):
            run = replace(config.run, folder=str(folder / slug(settings)), name=f"seed{seed}", seed=seed)
            complete = replace(config, run=run).to_dict()
            job = {"settings": settings, "seed": seed, "fingerprint": fingerprint(complete), "config": complete}
            job |= {"parameters": parameters, "flops_per_step": flops, "log": f"{run.folder}/{run.name}.log"}
            jobs.append(job | {"lengths": None if measured is None else [measured[0], measured[-1]]})
    shared = trained.pop() if len(trained) == 1 else None
    return Plan(base.run.name, folder, tuple(grid), tuple(jobs), measured, shared)
