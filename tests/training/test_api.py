"""minitx.train is `minitx train`: the same config, the same run, the same refusals."""

import json
from pathlib import Path

import torch

import minitx
from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main

SHORT = {
    "trainer.max_steps": 3, "trainer.precision": "32-true", "data.test_size": 20, "data.validation_size": 10,
    "data.batch_size": 8, "model.position": {"name": "rope"},
}  # fmt: skip


def test_a_run_is_that_of_the_command_line(tmp_path: Path) -> None:
    figures = minitx.train("reverse", {**SHORT, "run.folder": str(tmp_path / "python")})
    words = [word for key, value in SHORT.items() for word in (f"--{key}", json.dumps(value))]
    main(["train", "--config", "reverse", *words, "--run.folder", str(tmp_path / "shell")])
    first, second = (
        checkpoint.read(tmp_path / where / "reverse/v0/last.ckpt")["state_dict"] for where in ("python", "shell")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    written = json.loads((tmp_path / "python/reverse/v0/results.json").read_text())
    assert figures["exact_match"] == written["exact_match"]
    longer = {**SHORT, "run.folder": str(tmp_path / "python"), "trainer.max_steps": 5}
    assert minitx.train("reverse", longer, resume=True)["steps"] == 5
    assert [path.name for path in (tmp_path / "python/reverse").iterdir()] == ["v0"]
