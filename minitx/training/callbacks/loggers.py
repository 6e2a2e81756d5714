"""The loggers of log.to: CSV, W&B and MLflow get the curves, the config and the final figures beside TensorBoard."""

import csv
import io
import json
import os
from typing import Any

from lightning.pytorch.loggers import Logger, MLFlowLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from minitx.config.errors import ConfigError
from minitx.config.schema import Config
from minitx.training.callbacks.event_logger import RunLogger, final_figures, hyperparameters
from minitx.training.folder import RunFiles, is_first_process

IDS = "logger_ids.json"
"""File with the ids of a run at W&B and MLflow, which a resumed run continues."""


class CsvLogger(Logger):
    """The curves as metrics.csv in the run's folder, a column for each; a resumed run keeps the lines before it."""

    name, version = "csv", ""

    def __init__(self, files: RunFiles, purge_step: int | None) -> None:
        super().__init__()
        self.files, file = files, files.folder / "metrics.csv"
        self.rows: list[dict[str, Any]] = []
        if purge_step is not None and file.exists():
            with file.open(newline="", encoding="utf-8") as lines:
                self.rows = [row for row in csv.DictReader(lines) if int(row["step"]) < purge_step]

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add a line."""
        self.rows.append({"step": step, **metrics})

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Nothing: config.yaml has them."""

    @rank_zero_only
    def save(self) -> None:
        """Write the file."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in self.rows for name in row)))
        writer.writeheader()
        writer.writerows(self.rows)
        with self.files.writing("metrics.csv", "training continues, and the curves are kept for the next try"):
            self.files.write("metrics.csv", text.getvalue().encode())


def create(name: str, files: RunFiles, purge_step: int | None) -> Logger:
    """Create a logger by its name in log.to; that of a resumed run, which has a purge_step, continues its curves."""
    if name == "tensorboard":
        return RunLogger(files, purge_step)
    if name == "csv":
        return CsvLogger(files, purge_step)
    ids, title = files.folder / IDS, f"{files.folder.parent.name}/{files.folder.name}"
    recorded = json.loads(ids.read_text(encoding="utf-8")) if ids.exists() else {}
    logger: WandbLogger | MLFlowLogger
    try:
        if name == "wandb":
            project = os.environ.get("WANDB_PROJECT", "minitx")
            logger = WandbLogger(title, files.folder, id=recorded.get(name), project=project)
            identity = logger.experiment.id
        else:
            experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "minitx")
            database = f"sqlite:///{files.folder.parents[1].resolve() / 'mlflow.db'}"
            place = os.environ.get("MLFLOW_TRACKING_URI") or database
            logger = MLFlowLogger(experiment, title, place, run_id=recorded.get(name))
            identity = logger.run_id
    except Exception as error:
        if type(error).__module__.partition(".")[0] != name:
            raise
        raise ConfigError(f"log.to: {name} cannot start ({str(error).strip().splitlines()[0]})") from None
    if is_first_process():
        files.write(IDS, json.dumps({**recorded, name: identity}).encode())
    return logger


def finish(logger: Logger, config: Config, figures: dict[str, Any]) -> None:
    """Write the config and the final figures, and close the logger."""
    if isinstance(logger, RunLogger):
        logger.finish(config, figures)
        return
    logger.log_hyperparams(hyperparameters(config))
    logger.log_metrics(final_figures(figures), figures["steps"])
    logger.save()
    if isinstance(logger, WandbLogger):
        logger.experiment.finish()
