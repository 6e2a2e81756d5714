"""The loggers of log.to: TensorBoard, CSV, W&B and MLflow get curves, config and final figures."""

import csv
import io
import json
import os
from functools import partial
from typing import Any

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import SummaryWriter

from minitx.config.errors import ConfigError, first_line
from minitx.config.schema import Config
from minitx.tensorboard.events import EventFile
from minitx.tensorboard.writer import add_hyperparameters
from minitx.training.folder import RunFiles, is_first_process
from minitx.training.start import flat

IDS = "logger_ids.json"
"""File with the ids of a run at W&B and MLflow, which a resumed run continues."""
FINAL = "when_finished"
"""Group of the final figures among the curves. Of a run that is extended, all loggers but csv keep the earlier ones."""


class Events(SummaryWriter):
    """torch's writer on an EventFile, for a disk that may be full; hides earlier events from purge_step on."""

    def __init__(self, folder: str, files: RunFiles, purge_step: int | None) -> None:
        self.files = files
        super().__init__(folder, purge_step=purge_step)

    def _get_file_writer(self) -> Any:
        if self.file_writer is None:
            fallback = "training continues, and the curves are kept for the next try"
            file = EventFile(self.log_dir, partial(self.files.writing, "TensorBoard's event file", fallback))
            vars(self).update(file_writer=file, all_writers={self.log_dir: file})
            if self.purge_step is not None:
                file.add_event(Event(session_log=SessionLog(status=SessionLog.START)), self.purge_step)
        return self.file_writer


class RunLogger(TensorBoardLogger):
    """TensorBoard events in the run's folder, without Lightning's hparams.yaml, which config.yaml replaces."""

    def __init__(self, files: RunFiles, purge_step: int | None = None) -> None:
        super().__init__(files.folder.parent, name="", version=files.folder.name, default_hp_metric=False)
        self.files, self.purge_step = files, purge_step

    @property
    @rank_zero_experiment
    def experiment(self) -> Events:
        if self._experiment is None:
            self._experiment = Events(str(self.files.folder), self.files, self.purge_step)  # log_dir expands $NAME
        assert isinstance(self._experiment, Events)
        return self._experiment

    @rank_zero_only
    def log_hyperparams(self, params: Any, metrics: Any = None, step: int | None = None) -> None:
        add_hyperparameters(self.experiment, params)

    def save(self) -> None:
        self.experiment.flush()

    def finalize(self, status: str) -> None:
        """Flush, but stay open for the final figures: a second event file would hide them."""
        self.save()


class CsvLogger(Logger):
    """The curves as metrics.csv in the run's folder, a column for each; a resumed run keeps the earlier rows."""

    name, version = "csv", ""

    def __init__(self, files: RunFiles, purge_step: int | None) -> None:
        super().__init__()
        self.files, file = files, files.folder / "metrics.csv"
        self.rows: list[dict[str, Any]] = []
        if purge_step is not None and file.exists():
            try:
                with file.open(newline="", encoding="utf-8") as lines:
                    rows = [row for row in csv.DictReader(lines) if int(row["step"]) < purge_step]
                self.rows = [row for row in rows if not any(row[name] for name in row if name.startswith(FINAL))]
            except (KeyError, TypeError, ValueError, AttributeError, csv.Error):  # surplus cells are under None
                then = "the resumed run starts a new file, without the earlier curves"
                raise ConfigError(f"{file} is damaged: delete it; {then}") from None

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append({"step": step, **metrics})

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Nothing: config.yaml has them."""

    @rank_zero_only
    def save(self) -> None:
        if not self.rows and not (self.files.folder / "metrics.csv").exists():
            return  # before the first save: the next new run may take the folder
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
    try:
        recorded = {**json.loads(ids.read_text(encoding="utf-8"))} if ids.exists() else {}
    except (ValueError, TypeError, RecursionError):
        raise ConfigError(f"{ids} is damaged: delete it, and the resumed run is a new one at W&B and MLflow") from None
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
        raise ConfigError(f"log.to: {name} cannot start ({first_line(error)})") from None
    if is_first_process():
        files.write(IDS, json.dumps({**recorded, name: identity}).encode())
    return logger


def finish(logger: Logger, config: Config, figures: dict[str, Any]) -> None:
    """Write the config, without unset keys, `log` and run.folder, and the final figures, and close the logger."""
    logger.log_hyperparams({
        key: value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in flat(config.to_dict()).items()
        if value is not None and not key.startswith(("log.", "run.folder"))
    })  # fmt: skip
    final = {f"{FINAL}/{name}": value for name, value in figures.items() if isinstance(value, float)}
    logger.log_metrics(final, figures["steps"])
    logger.save()
    if isinstance(logger, RunLogger):
        logger.experiment.close()
    if isinstance(logger, WandbLogger):
        logger.experiment.finish()
