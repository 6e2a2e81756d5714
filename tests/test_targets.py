"""The figures that the configs promise, reached from scratch. Minutes, so not in the everyday suite."""

from pathlib import Path

import pytest

import minitx
from benchmarks.measures import share_of_rows
from minitx.training.api import train_config as train
from short_configs import config_from_words

CONFIGS = Path(__file__).parent.parent / "configs"

pytestmark = pytest.mark.slow


def trained(name: str, folder: Path) -> tuple[dict, minitx.Predictor]:
    config = config_from_words(["--config", str(CONFIGS / f"{name}.yaml"), "--run.folder", str(folder)])
    return train(config), minitx.load(folder / name, device="cpu")


def test_reversal_is_solved_and_shows_it(tmp_path: Path) -> None:
    results, predictor = trained("reverse", tmp_path)
    assert results["examples"] > 8_000  # of the 10,000 asked for: short questions are few
    assert results["exact_match"] == 1.0
    assert share_of_rows(predictor, mirrored=True) >= 0.99


def test_copying_is_solved_and_shows_it(tmp_path: Path) -> None:
    results, predictor = trained("copy", tmp_path)
    assert results["examples"] == 10_000
    assert results["exact_match"] >= 0.999
    assert share_of_rows(predictor, mirrored=False) >= 0.99
