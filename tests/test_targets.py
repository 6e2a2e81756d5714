"""The figures that the configs promise, reached from scratch. Minutes, so not in the everyday suite."""

from pathlib import Path

import pytest

import minitx
from benchmarks.measures import share_of_rows
from minitx.training.api import train_config as train
from short_configs import config_from_words

CONFIGS = Path(__file__).parent.parent / "configs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "examples", "exact_match", "mirrored"),
    [
        ("reverse", 8_000, 1.0, True),  # of the 10,000 asked for: short questions are few
        ("copy", 10_000, 0.999, False),
    ],
)
def test_the_task_is_solved_and_attention_shows_it(
    name: str, examples: int, exact_match: float, mirrored: bool, tmp_path: Path
) -> None:
    results = train(config_from_words(["--config", str(CONFIGS / f"{name}.yaml"), "--run.folder", str(tmp_path)]))
    assert results["examples"] >= examples
    assert results["exact_match"] >= exact_match
    assert share_of_rows(minitx.load(tmp_path / name, device="cpu"), mirrored=mirrored) >= 0.99
