"""Trained models that the commands share; none of them changes one."""

from pathlib import Path

import pytest

from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main
from predictors import trained

ROOT = Path(__file__).parents[2]
SMALL = ["--model.d_model", "32", "--model.n_layers", "1", "--trainer.max_steps", "4"]
SETS = ["--data.test_size", "50", "--data.validation_size", "20"]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    main(["train", "--config", "reverse", *SMALL, *SETS, "--run.folder", str(folder / "runs")])
    return folder / "runs/reverse"


@pytest.fixture(scope="session")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("to be, or not to be: that is the question.\n" * 40)
    words = ["--data.path", str(folder / "text.txt"), "--run.folder", str(folder / "runs")]
    main(["train", "--config", "shakespeare", *SMALL, *words])
    return folder / "runs/shakespeare"


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint that answers questions."""
    path = tmp_path_factory.mktemp("answers") / "model.ckpt"
    checkpoint.write(trained("encoder_decoder"), path)
    return str(path)


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint that continues a text and never ends it."""
    path = tmp_path_factory.mktemp("text") / "model.ckpt"
    checkpoint.write(trained("decoder_only", text=True, ends=False), path)
    return str(path)
