"""Everything that defines a sweep, checked before its first run starts."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from minitx.config.errors import ConfigError
from minitx.config.schema import Config, config_from_dict
from minitx.config.yaml_files import overridden
from minitx.data.tasks import Task
from minitx.data.text.work_progress import progress
from minitx.evaluation.report import length_range
from minitx.extensions.python_files import with_imports
from minitx.sweeps.grid import Range, Settings, Space, combinations, every_value, slug
from minitx.training.api import refuse_missing_loggers, resolved
from minitx.training.folder import run_root
from minitx.training.resolve import ResolvedRun
from minitx.training.start import Start, data_digest

SEED = "run.seed"
MAX_RUNS = 10_000  # seeds, or settings of a search


class SearchOptions(NamedTuple):
    """Which settings are tried."""

    name: Literal["grid", "random", "tpe"] = "grid"
    trials: int | None = None  # settings to try, except of a grid
    prune: bool = False  # whether trials are stopped that are worse than the median of the others


GRID = SearchOptions()


@dataclass
class Plan:
    """A sweep. A trial of a grid is one run; one of another search trains its settings with every seed."""

    name: str
    study: str  # the same in all processes that join the same sweep
    folder: Path
    values: Mapping[str, Any]  # the config without the settings
    space: Space
    seeds: range
    search: SearchOptions
    points: list[dict[str, str | int]]  # the parameters of a grid's trials, with their seed
    lengths: range | None = None
    trained: tuple[int, int] | None = None  # the lengths of training, where all settings share them
    digests: dict[str, str] = field(default_factory=dict)  # run_digest of checked settings, by data_key

    @property
    def trials(self) -> int:
        """The number of trials."""
        return self.search.trials or len(self.points)

    def run_folder(self, settings: Settings, seed: int) -> Path:
        """The folder of a run's versions v0, v1, ..."""
        return self.folder / slug(settings) / f"seed{seed}"

    def resolved(self, settings: Settings, seed: int = 1) -> ResolvedRun:
        """A run."""
        folder = self.run_folder(settings, seed)
        run = {"run.folder": str(folder.parent), "run.name": folder.name, "run.seed": seed}
        return resolved(overridden(self.values, {**settings, **run}))


def plan(
    values: Mapping[str, Any],
    space: Space,
    seeds: int,
    lengths: str | None = None,
    first_seed: int = 1,
    search: SearchOptions = GRID,
) -> Plan:
    """Check a sweep with the seeds first_seed, first_seed + 1, ...; each run is also measured at the lengths "from:to".

    All settings of a grid are checked; of another search every value and every end of a range, though not together. The
    data is part of the study, so that no table has figures of two texts, and so are the checkpoints of run.init_from.
    """
    for option, number in (("seeds", seeds), ("trials", search.trials)):
        if number is not None and not 1 <= number <= MAX_RUNS:
            raise ConfigError(f"--{option} must be at least 1 and at most {MAX_RUNS:,}, got {number}")
    _check(search, space)
    values = with_imports(values)
    base = config_from_dict(values)
    name, grid = base.run.name, search.name == "grid"
    settings = combinations(space) if grid else every_value(space)
    numbers = range(first_seed, first_seed + seeds)
    points: list[Any] = [{**each, SEED: seed} for each in settings for seed in numbers] if grid else []
    varied = [(key, "..".join(values) if isinstance(values, Range) else values) for key, values in space.items()]
    unseeded = fingerprint(overridden(base.to_dict(), {SEED: 1}))  # run.seed is not used
    same = [unseeded, name, varied, [*numbers], lengths, search.name, search.prune]
    planned = Plan(name, "", run_root(base).with_name(f"{name}_sweep"), values, space, numbers, search, points)
    trained: set[tuple[int, int] | None] = set()
    for each in progress(settings, "checking", total=len(settings), unit=" settings"):
        config, task, _, start, _ = planned.resolved(each)
        for key, value in (("num_nodes", config.trainer.num_nodes), ("devices", config.trainer.devices)):
            if value not in ("auto", 1, "1"):
                advice = "each run uses one device, --jobs N trains N at once"
                raise ConfigError(f"trainer.{key} must be 1 in a sweep, got {value}: {advice}")
        refuse_missing_loggers(config)
        planned.lengths = None if lengths is None else length_range(lengths, task)
        trained.add(task.trained_lengths)
        for split in ("validation", task.final_split):
            task.examples(split, 1)  # raises if the task has too few different examples
        if (section := data_key(config)) not in planned.digests:
            planned.digests[section] = run_digest(config, task, start_digest(start))
    planned.trained = trained.pop() if len(trained) == 1 else None
    described = json.dumps([*same, *planned.digests.values()])
    planned.study = f"{name}-{hashlib.sha256(described.encode()).hexdigest()[:8]}"
    return planned


def _check(search: SearchOptions, space: Space) -> None:
    ranges = [key for key, values in space.items() if isinstance(values, Range)]
    if search.name == "grid":
        if ranges:
            raise ConfigError(f"--set {ranges[0]}: a range needs --search random or tpe, and --trials N")
        if search.trials is not None:
            raise ConfigError("--trials is for --search random or tpe; a grid tries every combination")
        return
    if search.trials is None:
        raise ConfigError(f"--search {search.name} needs --trials N, the number of settings to try, got none")
    if not space:
        raise ConfigError(f"--search {search.name} needs a key to vary: --set KEY=A,B or --set KEY=LOW..HIGH")


def data_key(config: Config) -> str:
    """The key of a run in Plan.digests: its `data` section, and the paths of the files that it is made from."""
    return json.dumps([config.data, config.run.init_from, *config.imports], sort_keys=True)


def run_digest(config: Config, task: Task, start: str) -> str:
    """What a run depends on beside its config: hashes of the data, of its start (start_digest) and of `imports`."""
    return f"{data_digest(task)}{start}{config.imports or ''}"


def start_digest(start: Start | None) -> str:
    """Hash the checkpoint file that a run starts from; empty without one."""
    if start is None:
        return ""
    with start.file.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def fingerprint(config: dict[str, Any]) -> str:
    """A hash of a resolved config (Config.to_dict) without the name and folder of its run."""
    run = {key: value for key, value in config["run"].items() if key not in ("folder", "name")}
    return hashlib.sha256(json.dumps({**config, "run": run}, sort_keys=True).encode()).hexdigest()[:16]
