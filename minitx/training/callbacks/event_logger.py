"""TensorBoard events of a run, in a file that survives a full disk; at the end its settings and final figures."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import SummaryWriter

from minitx.config.schema import Config
from minitx.tensorboard.events import EventFile
from minitx.tensorboard.writer import add_hyperparameters
from minitx.training.folder import RunFiles
from minitx.training.hooks import RunCallback


class Events(SummaryWriter):
    """torch's writer, on an EventFile.

    Args:
        folder: of the event file.
        files: of the run; they report failed writes.
        purge_step: events of earlier files from this step on are hidden.
    """

    def __init__(self, folder: str, files: RunFiles, purge_step: int | None = None) -> None:
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
    """TensorBoard events in the run's folder, without Lightning's hparams.yaml, which config.yaml replaces.

    Args:
        files: of the run.
        purge_step: of a resumed run, its first new step.
    """

    def __init__(self, files: RunFiles, purge_step: int | None = None) -> None:
        super().__init__(files.folder.parent, name="", version=files.folder.name, default_hp_metric=False)
        self.files, self.purge_step = files, purge_step

    @property
    @rank_zero_experiment
    def experiment(self) -> Events:
        """The run's writer."""
        if self._experiment is None:
            self._experiment = Events(self.log_dir, self.files, self.purge_step)
        assert isinstance(self._experiment, Events)
        return self._experiment

    def save(self) -> None:
        """Flush the buffer to disk."""
        self.experiment.flush()

    def finalize(self, status: str) -> None:
        """Flush, but stay open for the final figures: a second event file would hide them."""
        self.save()

    def finish(self, config: Config, figures: dict[str, Any]) -> None:
        """Write the hyperparameters and the final figures, and close."""
        final = {f"final/{name}": value for name, value in figures.items() if isinstance(value, float)}
        add_hyperparameters(self.experiment, hyperparameters(config), final, figures["steps"])
        self.experiment.close()


def hyperparameters(config: Config) -> dict[str, bool | int | float | str]:
    """The config with dotted keys and simple values, without unset keys, `log` and run.folder."""
    found: dict[str, bool | int | float | str] = {}

    def walk(key: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(f"{key}.{name}" if key else name, inner)
        elif value is not None and not key.startswith(("log.", "run.folder")):
            found[key] = value if isinstance(value, bool | int | float | str) else str(value)

    walk("", config.to_dict())
    return found


class LogResults(RunCallback):
    """Write hyperparameters and final figures once a run is evaluated."""

    def on_results(self, trainer: pl.Trainer, config: Config, results: dict[str, Any]) -> None:
        """Write them, and close the log."""
        assert isinstance(trainer.logger, RunLogger)
        trainer.logger.finish(config, results)
