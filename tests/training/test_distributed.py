"""Two processes on one machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_make_one_run(tmp_path: Path) -> None:
    command = [
        sys.executable, str(ROOT / "train.py"), "--config", str(ROOT / "configs/reverse.yaml"),
        "--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp",
        "--trainer.max_steps", "20", "--trainer.val_every_n_steps", "10", "--data.test_size", "50",
        "--run.folder", str(tmp_path),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert [folder.name for folder in (tmp_path / "reverse").iterdir()] == ["v0"]
    folder = tmp_path / "reverse/v0"
    assert len(list(folder.glob("events.*"))) == 1
    assert json.loads((folder / "results.json").read_text())["steps"] == 20
    assert result.stdout.count("step 20/20") == 1
    assert "sync_dist" not in result.stderr
