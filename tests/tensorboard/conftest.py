"""One folder of runs and one TensorBoard on it, shared by all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browsing import LONG, MODELS, tensorboard
from torch.utils.tensorboard import SummaryWriter

from minitx.cli.main import main
from minitx.tensorboard.map_format import encode
from minitx.tensorboard.writer import add_maps
from predictors import built

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of reversal, maps of each architecture, 300 steps, tokens and names like markup, and damaged maps."""
    folder = tmp_path_factory.mktemp("tab") / "runs"
    short = ["--trainer.max_steps", "6", "--trainer.val_every_n_steps", "2", "--data.test_size", "10"]
    main(["train", "--config", str(ROOT / "configs/reverse.yaml"), *short, "--run.folder", str(folder)])
    for architecture, text in MODELS.items():
        with SummaryWriter(str(folder / architecture)) as writer:
            for kind, items in built(architecture).attend(text).encoded().items():
                add_maps(writer, f"{kind}/example_1", items, 5)
    token = "<img src=x onerror=parent.hacked=1>"
    hostile = encode("encoder", [token, "שלום"], [token, "👩‍👩‍👧"], [np.full((1, 2, 2), 0.25)])
    with SummaryWriter(str(folder / "strange")) as writer:
        add_maps(writer, "encoder/hostile", hostile, 1)
        add_maps(writer, "encoder/hostile", [hostile[0], b"no gzip"], 2)
        add_maps(writer, "foreign/x", [b"not ours", b"at all"], 1)
    with SummaryWriter(str(folder / "long")) as writer:
        for step in LONG:
            add_maps(writer, "encoder/x", encode("encoder", [str(step)], ["a"], [np.full((1, 1, 1), 0.25)]), step)
    return folder


# Through Python's data server, requests go in process in test_plugin.py; here they go through the one in Rust.
@pytest.fixture(scope="session", params=["--load_fast=auto", pytest.param("--load_fast=false", marks=pytest.mark.slow)])
def address(runs: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    with tensorboard(runs, request.param, "--reload_interval", "1") as url:
        yield url
