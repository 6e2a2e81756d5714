"""A small config that learns in seconds, and trained runs that tests share."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from minitx.config.schema import Config, config_from_dict
from minitx.data.batch import Batch
from minitx.data.loader import TrainingBatches
from minitx.training.api import train_config as train
from minitx.training.module import TransformerModule
from minitx.training.resolve import resolve


def small_values(folder: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """Reversal of up to 5 of 6 symbols, or the text at data.path, with `sections` on top; logs no attention."""
    plain: dict[str, Any] = {
        "run": {"name": "small", "folder": str(folder / "runs")},
        "data": {"name": "reverse", "symbols": 6, "length": [1, 5],
                 "batch_size": 32, "validation_size": 64, "test_size": 64},
        "model": {"architecture": "encoder_decoder", "d_model": 32, "n_heads": 2, "n_layers": 1, "d_ff": 64},
        "optimizer": {"lr": 5e-3, "schedule": {"warmup_steps": 10}},
        "trainer": {"max_steps": 6, "val_every_n_steps": 3, "save_every_n_steps": 2,
                    "accelerator": "cpu", "precision": "32-true"},
        "log": {"every_n_steps": 2, "attention": {"every_n_validations": 0}},
    }  # fmt: skip
    if "path" in sections.get("data", {}):
        plain["data"] = {"name": "text", "block": 24, "batch_size": 8, "validation_size": 20}
        plain["model"]["architecture"] = "decoder_only"
    return plain | {section: plain[section] | values for section, values in sections.items()}


def small_config(folder: Path, **sections: dict[str, Any]) -> Config:
    return config_from_dict(small_values(folder, **sections))


def module_on(config: Config, batches: int = 1, **trainer: Any) -> tuple[TransformerModule, Batch]:
    """A module with a replacement for Lightning's Trainer, and the first of the batches of its first step."""
    config, task, model, *_ = resolve(config)
    module = TransformerModule(model, task, config)
    settings = {"world_size": 1, "accumulate_grad_batches": batches, "fit_loop": Mock(total_batch_idx=0), **trainer}
    module._trainer = SimpleNamespace(**settings)  # type: ignore[assignment]
    accumulating = replace(config, trainer=replace(config.trainer, accumulate_grad_batches=batches))
    batch, *_ = TrainingBatches(task, accumulating, 0, lambda: 0)
    return module, batch


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Config]:
    """small(section={key: value}, ...): see small_config; its runs are in tmp_path/runs."""
    return partial(small_config, tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the first run of small(...)."""
    return tmp_path / "runs/small/v0"


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("the cat sat on the mat.\n" * 200)
    return tmp_path / "text.txt"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """trained(section={key: value}, ...): the folder of a finished run of small(...), which tests only read."""
    folders: dict[str, Path] = {}

    def find(**sections: dict[str, Any]) -> Path:
        key = json.dumps(sections, sort_keys=True)
        if key not in folders:
            folder = tmp_path_factory.mktemp("trained")
            train(small_config(folder, **sections))
            folders[key] = folder / "runs/small/v0"
        return folders[key]

    return find


@pytest.fixture
def finished(tmp_path: Path, trained: Callable[..., Path]) -> Callable[..., Path]:
    """finished(section={key: value}, ...): a copy of the folder of `trained`, which small(...) resumes."""
    return lambda **sections: shutil.copytree(trained(**sections), tmp_path / "runs/small/v0")
