"""Every experiment in configs/, killed and resumed, is the one that was not interrupted."""

from pathlib import Path

import pytest

from minitx.training.api import train_config as train
from short_configs import shortened
from tests.training.interrupting import assert_same_run, break_off

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))
LARGE = ("multi30k_de_en", "multi30k_en_de", "python_code", "number_words")
"""What takes long, and has a smaller one of its kind: multi30k_small, shakespeare, dates."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem in LARGE else []) for path in CONFIGS],
    ids=lambda path: path.stem,
)
def test_killed_and_resumed_is_never_interrupted(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    every = ("--trainer.save_every_n_steps", "1", "--log.every_n_steps", "1")
    straight, broken = (shortened(path, tmp_path, 3, *every, "--run.name", name) for name in ("straight", "broken"))
    train(straight)
    break_off(broken, 2)
    train(broken, resume=True)
    assert_same_run(tmp_path / "runs/straight/v0", tmp_path / "runs/broken/v0")
