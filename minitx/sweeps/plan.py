"""Every run of a sweep as a checked config, before any of them starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minitx.config.errors import ConfigError
from minitx.config.parser import overridden
from minitx.config.schema import Config, config_from_dict
from minitx.evaluation.report import length_range
from minitx.sweeps import grid
from minitx.sweeps.grid import Settings
from minitx.sweeps.rows import fingerprint
from minitx.training.describe import Cost, cost, first_batch
from minitx.training.resolve import resolve


@dataclass(frozen=True)
class Point:
    """One run."""

    settings: Settings
    seed: int
    config: Config  # resolved
    cost: Cost

    @property
    def fingerprint(self) -> str:
        """What tells this experiment from another."""
        return fingerprint(self.config.to_dict())

    @property
    def log(self) -> Path:
        """Where its run writes what it says."""
        return Path(self.config.run.folder) / f"{self.config.run.name}.log"

    def job(self, lengths: range | None) -> dict[str, Any]:
        """What a worker is told, as plain JSON types."""
        return {
            "settings": self.settings,
            "seed": self.seed,
            "config": self.config.to_dict(),
            "cost": self.cost._asdict(),
            "lengths": None if lengths is None else [lengths[0], lengths[-1]],
            "log": str(self.log),
        }


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep."""

    name: str
    folder: Path
    keys: tuple[str, ...]
    points: tuple[Point, ...]
    lengths: range | None
    trained: tuple[int, int] | None  # the lengths of training, where all settings share them


def plan(values: Mapping[str, Any], grid_values: dict[str, list[str]], seeds: int, lengths: str | None = None) -> Plan:
    """Lay out the runs: <run.folder>/<run.name>_sweep/<settings>/seed1/v0, ...

    Args:
        values: of the config, as plain JSON types.
        grid_values: the values to try of each key, from grid.parse.
        seeds: how many; they are 1, 2, ...
        lengths: "from:to", to be measured on besides.

    Raises:
        ConfigError: whatever is wrong with any of the runs, with the key to change.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {seeds}")
    base = config_from_dict(values)
    folder = Path(base.run.folder).expanduser() / f"{base.run.name}_sweep"
    points: list[Point] = []
    asked: range | None = None
    trained: set[tuple[int, int] | None] = set()
    for settings in grid.combinations(grid_values):
        config, task, model, *_ = resolve(overridden(values, settings))
        _one_device(config)
        asked = None if lengths is None else length_range(lengths, task)
        trained.add(task.trained_lengths)
        task.examples("validation", 1)
        spent = cost(config, model, first_batch(config, task))
        for seed in range(1, seeds + 1):
            run = dataclasses.replace(
                config.run, folder=str(folder / grid.slug(settings)), name=f"seed{seed}", seed=seed
            )
            points.append(Point(settings, seed, dataclasses.replace(config, run=run), spent))
    shared = trained.pop() if len(trained) == 1 else None
    return Plan(base.run.name, folder, tuple(grid_values), tuple(points), asked, shared)


def _one_device(config: Config) -> None:
    """Refuse runs over several devices.

    Raises:
        ConfigError: with the key.
    """
    trainer = config.trainer
    if trainer.devices not in ("auto", 1, "1") or trainer.num_nodes != 1:
        key, value = ("devices", trainer.devices) if trainer.num_nodes == 1 else ("num_nodes", trainer.num_nodes)
        raise ConfigError(
            f"trainer.{key} must be 1 in a sweep, got {value}: each run takes one device, --jobs N trains N at once"
        )


def devices(plan: Plan) -> int:
    """How many GPUs there are for these runs; 0 for runs on a CPU."""
    wanted = any(point.config.trainer.accelerator != "cpu" for point in plan.points)
    return torch.cuda.device_count() if wanted else 0
