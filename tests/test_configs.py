"""Every experiment in configs/ loads, explains itself and trains two steps."""

import math
from pathlib import Path

import pytest
import yaml

from minitx.config.parser import config_from_words
from minitx.training.api import train_config as train
from short_configs import short, shortened

FOLDER = Path(__file__).parent.parent / "configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
PRESETS = sorted(FOLDER.glob("model/*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_trains_two_steps(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    results = train(shortened(path, tmp_path))
    assert results["steps"] == 2
    assert math.isfinite(results["loss"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_says_what_it_is_and_what_to_expect(path: Path) -> None:
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any("Expected:" in line for line in header)
    assert any("Reference:" in line for line in header)
    assert yaml.safe_load(path.read_text())["run"]["name"] == path.stem


@pytest.mark.parametrize("task", ["copy", "reverse"])
@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_a_preset_composes_with_a_task(preset: Path, task: str, tmp_path: Path) -> None:
    words = ["--config", str(FOLDER / f"{task}.yaml"), "--config", str(preset), "--data.length", "[3, 9]"]
    config = config_from_words([*words, *short(2), "--run.folder", str(tmp_path / "runs")])
    wanted = yaml.safe_load(preset.read_text())["model"]
    assert {key: getattr(config.model, key) for key in wanted} == wanted
    assert (config.data["name"], config.model.d_model) == (task, 64)
    assert math.isfinite(train(config)["loss"])
