"""log.to: every logger holds the same curves, read here with its own reader; a resumed run continues them."""

import csv
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from minitx.config.errors import ConfigError
from minitx.training import api
from minitx.training.api import train_config as train
from minitx.training.callbacks import loggers
from minitx.training.folder import RunFiles
from tests.training.interrupting import break_off, scalars


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}.items():
        monkeypatch.setenv(name, value)


Curves = dict[str, list[tuple[int, float]]]
LOG = {"every_n_steps": 1, "attention": {"every_n_validations": 0}}


def of_csv(folder: Path) -> Curves:
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    return {name: [(int(row["step"]), float(row[name])) for row in rows if row[name]] for name in rows[0]}


def of_mlflow(folder: Path) -> Curves:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parents[1] / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("minitx").experiment_id])
    assert (run.info.run_name, run.info.status) == ("small/v0", "FINISHED")
    assert run.data.params["model.d_model"] == "32"
    found = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: [(point.step, point.value) for point in history] for name, history in found.items()}


@pytest.mark.parametrize(("name", "read"), [("csv", of_csv), pytest.param("mlflow", of_mlflow, marks=pytest.mark.slow)])
def test_a_logger_holds_tensorboards_curves_and_resuming_continues_them(
    name: str, read: Callable[[Path], Curves], folder: Path, small: Any
) -> None:
    pytest.importorskip(name)
    break_off(small(log={**LOG, "to": ["csv"]}), 0)  # before it logs: the next run reuses its folder
    config = small(log={**LOG, "to": [name, "tensorboard"]})
    break_off(config, 5)  # after the save of step 4
    train(config, resume=True)
    found, expected = read(folder), scalars(folder)
    for curve in ("training/loss", "validation/exact_match"):
        steps, values = zip(*sorted({**dict(found[curve])}.items()), strict=True)
        assert steps == tuple(step for step, _ in expected[curve])
        assert values == pytest.approx([value for _, value in expected[curve]], rel=1e-6)
        assert name != "csv" or len(found[curve]) == len(steps), "the points after the last save were replaced"
    results = json.loads((folder / "results.json").read_text())
    assert found["when_finished/loss"][-1][1] == pytest.approx(results["loss"])
    if name == "csv":
        train(small(log={**LOG, "to": [name]}, trainer={"max_steps": 7}), resume=True)
        assert [step for step, _ in read(folder)["when_finished/loss"]] == [7], "those of the shorter run are gone"


@pytest.mark.slow
def test_a_resumed_run_is_the_same_one_at_wandb(folder: Path, small: Any) -> None:
    wandb = pytest.importorskip("wandb")
    config = small(log={**LOG, "to": ["wandb"]})
    break_off(config, 5)
    wandb.finish()  # as at the end of a process
    train(config, resume=True)
    parts = {path.name.rpartition("-")[2] for path in (folder / "wandb").glob("offline-run-*")}
    assert parts == {json.loads((folder / loggers.IDS).read_text())["wandb"]}


@pytest.mark.parametrize("others", [[], ["tensorboard", "csv", "tensorboard"]])
def test_the_order_of_loggers_is_free_and_one_named_twice_is_one(tmp_path: Path, small: Any, others: list[str]) -> None:
    folder = tmp_path / "$HOME/small/v0"  # not expanded
    log = {"attention": {"every_n_steps": 2, "examples": 1}, "embeddings": {"examples": 1}}
    train(small(log={**LOG, **log, "to": ["csv", *others]}, run={"folder": str(tmp_path / "$HOME")}))
    assert len(of_csv(folder)["training/loss"]) == 6
    assert len([*folder.glob("events*")]) == (folder / "projector_config.pbtxt").exists() == bool(others)
    assert not others or {"training/loss", "validation_heads_cross/entropy/layer_1.head_1"} <= scalars(folder).keys()


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_is_one_sentence(name: str, small: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(api, "find_spec", lambda package: None if package == name else find_spec(package))
    with pytest.raises(ConfigError, match=f"log.to: {name} is not installed: pip install {name}, or remove"):
        train(small(log={"to": ["csv", name]}))


def test_a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    ids = (b"{", b"[1]", b"\xff", b"[" * 10**6)
    rows = (b"a;b\n1;2\n", b"step,x\none,2\n", b"x,step\n1\n", b"step\n1,2\n", b"\xff\n")
    for name, file, contents in (("wandb", loggers.IDS, ids), ("csv", "metrics.csv", rows)):
        for damaged in contents:
            (tmp_path / file).write_bytes(damaged)
            with pytest.raises(ConfigError, match=rf"{file} is damaged: delete it"):
                loggers.create(name, RunFiles(tmp_path), purge_step=4)
