"""Every experiment in configs/ loads, explains itself and trains two steps."""

import math
from pathlib import Path

import pytest
import yaml

from minitx.options import config_parser, to_config
from minitx.training.run import train
from parallel_files import write_split

FOLDER = Path(__file__).parent.parent / "configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
PRESETS = sorted(FOLDER.glob("model/*.yaml"))
SHORT = [
    "--trainer.max_steps", "2", "--trainer.val_every_n_steps", "2", "--trainer.save_every_n_steps", "2",
    "--trainer.accelerator", "cpu", "--data.validation_size", "10", "--data.test_size", "10",
]  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_trains_two_steps(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    words = ["--config", str(path), *SHORT, "--run.folder", str(tmp_path / "runs")]
    data = yaml.safe_load(path.read_text())["data"]
    if data["name"] == "text":
        words += ["--data.validation_share", "0.01"]
        if data["path"].startswith("data/"):  # a text that the reader brings
            text = tmp_path / "text.txt"
            text.write_text("What a piece of work is a man!\n" * 400)
            words += ["--data.path", str(text)]
    if data["name"] == "translation" and data["path"].startswith("data/"):  # files that the reader brings
        pairs = [(f"Zeile {number} aus einer Datei.", f"Line {number} of a file.") for number in range(40)]
        write_split(tmp_path, "train", pairs[:30], (data["source"], data["target"]))
        write_split(tmp_path, "val", pairs[30:35], (data["source"], data["target"]))
        write_split(tmp_path, data["test"], pairs[35:], (data["source"], data["target"]))
        words += ["--data.path", str(tmp_path)]
    parser = config_parser()
    results = train(to_config(parser, parser.parse_args(words)))
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
    parser = config_parser()
    words = ["--config", str(FOLDER / f"{task}.yaml"), "--config", str(preset), "--data.length", "[3, 9]"]
    config = to_config(parser, parser.parse_args([*words, *SHORT, "--run.folder", str(tmp_path / "runs")]))
    wanted = yaml.safe_load(preset.read_text())["model"]
    assert {key: getattr(config.model, key) for key in wanted} == wanted
    assert (config.data["name"], config.model.d_model) == (task, 64)
    assert math.isfinite(train(config)["loss"])
