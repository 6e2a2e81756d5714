"""TensorBoard events of a run, in a file that survives a full disk; at the end its settings and final figures."""

from functools import partial
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import SummaryWriter

from minitx.config.schema import Config
from minitx.tensorboard.events import EventFile
from minitx.tensorboard.writer import add_hyperparameters
from minitx.training.folder import RunFiles
from minitx.training.start import flat


class Events(SummaryWriter):
    """torch's writer, on an EventFile; events of earlier files from purge_step on are hidden."""

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
            self._experiment = Events(self.log_dir, self.files, self.purge_step)
        assert isinstance(self._experiment, Events)
        return self._experiment

    def save(self) -> None:
        self.experiment.flush()

    def finalize(self, status: str) -> None:
        """Flush, but stay open for the final figures: a second event file would hide them."""
        self.save()

    def finish(self, config: Config, figures: dict[str, Any]) -> None:
        """Write the hyperparameters and the final figures, and close."""
        add_hyperparameters(self.experiment, hyperparameters(config), final_figures(figures), figures["steps"])
        self.experiment.close()


def hyperparameters(config: Config) -> dict[str, bool | int | float | str]:
    """The config with dotted keys and simple values, without unset keys, `log` and run.folder."""
    return {
        key: value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in flat(config.to_dict()).items()
        if value is not None and not key.startswith(("log.", "run.folder"))
    }


def final_figures(results: dict[str, Any]) -> dict[str, float]:
    """The figures of results.json as points of curves."""
    return {f"when_finished/{name}": value for name, value in results.items() if isinstance(value, float)}
