"""Training on a simulated GPU: no tensor on the wrong device, and no synchronization between steps that log."""

import json
import shutil
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch

from minitx.nn import POSITIONS
from small_models import ARCHITECTURES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (compiler := shutil.which("g++")) is None:
        pytest.skip("there is no g++")
    made, there = tmp_path_factory.mktemp("standin") / "cuda.so", Path(torch.__file__).parent
    source = Path(__file__).with_name("cuda.cpp")
    options = f"-shared -fPIC -std=c++20 -I{there}/include -L{there}/lib -Wl,-rpath,{there}/lib -ltorch_cpu -lc10"
    subprocess.run([compiler, str(source), "-o", str(made), *options.split()], check=True)
    return made


SCRIPT = """
import ctypes, json, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)  # before torch
import minitx
from minitx.training import module, optim
from tests.standin.device import LOG, simulated

def counted(self, *batch, start=module.TransformerModule.on_train_batch_start):
    gpu.step = self.trainer.global_step + 1
    start(self, *batch)

module.TransformerModule.on_train_batch_start = counted
for changes, fused, resume in json.loads(sys.argv[2]):
    module.build_optimizer = lambda model, config, **options: optim.build_optimizer(model, config, fused)
    with simulated("cuda") as gpu:
        minitx.train("reverse", changes, resume=resume)
        print("LOG", json.dumps(LOG))
"""
SMALL = {
    "data.batch_size": 8, "data.validation_size": 8, "data.test_size": 8, "model.d_model": 16, "model.n_layers": 1,
    "trainer.max_steps": 8, "trainer.save_every_n_steps": 6, "trainer.accelerator": "gpu",
    "log.every_n_steps": 3, "log.attention.every_n_validations": 0,
}  # fmt: skip
QUIET = (1, 2, 4, 5, 7)
"""Steps after which nothing is logged or saved."""


def waits(library: Path, folder: Path, *runs: dict[str, Any], fused: bool = True) -> list[Any]:
    """Synchronizations in the quiet steps of each run; one of the same name resumes. The first may not be fused."""
    asked = []
    for number, run in enumerate(runs):
        values = {**SMALL, "run.folder": str(folder), "run.name": f"run{number}", **run}
        asked.append((values, fused or number > 0, number > 0 and "run.name" in run))
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(library), json.dumps(asked)]
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr[-3000:]
    logs = [json.loads(line.removeprefix("LOG ")) for line in ran.stdout.splitlines() if line.startswith("LOG ")]
    assert all(any(step % 3 == 0 for *_, step in log) for log in logs), "logging waits"
    return [[what for what in log if what[2] in QUIET] for log in logs]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_no_step_waits_whatever_the_scheme_or_with_muon(library: Path, tmp_path: Path, precision: str) -> None:
    numberings = cycle(["consecutive", "coupled", "offset", "randomized"])
    runs = [
        {"model.position.name": name, "model.position_ids.name": ids, "model.architecture": kind}
        for name, ids, kind in zip(POSITIONS, numberings, cycle(ARCHITECTURES))
    ]
    runs = [{**run, "trainer.precision": precision} for run in (*runs, {"optimizer.name": "muon"})]
    assert waits(library, tmp_path, *runs) == [[]] * len(runs)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_that_was_not_fused_is_resumed(library: Path, tmp_path: Path, optimizer: str) -> None:
    """Its step counters come from the file on the CPU, and fused AdamW wants them on the device."""
    first = {"run.name": "resumed", "optimizer.name": optimizer, "trainer.precision": "16-mixed"}
    then = {**first, "trainer.precision": "32-true", "trainer.max_steps": 11}
    assert not waits(library, tmp_path, first, then, fused=False)[1]
