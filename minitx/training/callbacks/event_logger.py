"""TensorBoard events of a run, in a file that outlives a full disk; at the end its settings and figures."""

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
    """Torch's writer, into a file that outlives a full disk.

    Args:
        folder: of the event file.
        disk: to tell when that cannot be written.
        purge_step: of earlier files, what was logged at this step and later is not shown any more.
    """

    def __init__(self, folder: str, disk: RunFiles, purge_step: int | None = None) -> None:
        self.disk = disk
        super().__init__(folder, purge_step=purge_step)

    def _get_file_writer(self) -> Any:
        if self.file_writer is None:
            otherwise = "training goes on, and the curves wait for the next try"
            file = EventFile(self.log_dir, partial(self.disk.writing, "TensorBoard's event file", otherwise))
            vars(self).update(file_writer=file, all_writers={self.log_dir: file})
            if self.purge_step is not None:
                file.add_event(Event(session_log=SessionLog(status=SessionLog.START)), self.purge_step)
        return self.file_writer


class RunLogger(TensorBoardLogger):
    """TensorBoard events in the run's folder, without the hparams.yaml that config.yaml makes superfluous.

    Args:
        disk: of the run.
        purge_step: of a run that goes on, the step behind which it does.
    """

    def __init__(self, disk: RunFiles, purge_step: int | None = None) -> None:
        super().__init__(disk.folder.parent, name="", version=disk.folder.name, default_hp_metric=False)
        self.disk, self.purge_step = disk, purge_step

    @property
    @rank_zero_experiment
    def experiment(self) -> Events:
        """The run's writer."""
        if self._experiment is None:
            self._experiment = Events(self.log_dir, self.disk, self.purge_step)
        assert isinstance(self._experiment, Events)
        return self._experiment

    def save(self) -> None:
        """Write out what is buffered."""
        self.experiment.flush()

    def finalize(self, status: str) -> None:
        """Stay open after training: the final figures belong into the same file, which a second writer would hide."""
        self.save()

    def finish(self, config: Config, figures: dict[str, Any]) -> None:
        """Write the hyperparameters and the final figures, and close."""
        told = {f"final/{name}": value for name, value in figures.items() if isinstance(value, float)}
        add_hyperparameters(self.experiment, hyperparameters(config), told, figures["steps"])
        self.experiment.close()


def hyperparameters(config: Config) -> dict[str, bool | int | float | str]:
    """A config with dotted keys and simple values: without what is not set, and where a run lands or what it logs."""
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
    """Writes hyperparameters and final figures once a run is evaluated."""

    def on_results(self, trainer: pl.Trainer, config: Config, results: dict[str, Any]) -> None:
        """Write, and close the log."""
        assert isinstance(trainer.logger, RunLogger)
        trainer.logger.finish(config, results)
