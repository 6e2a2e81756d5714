"""Lightning's checkpoints: written atomically, read without unpickling anything but tensors and plain types."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError
from minitx.training.folder import RunFiles
from minitx.training.module import validation_is_due
from minitx.training.start import Start


class AtomicCheckpointIO(TorchCheckpointIO):
    """Atomic writes; Lightning's own leaves a partial file if the process is killed."""

    def __init__(self, files: RunFiles, start: Start | None) -> None:
        self.files, self.start = files, start  # start: the checkpoint of a run to resume, already read

    def save_checkpoint(self, contents: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint; a failed write keeps the previous file."""
        with self.files.writing(Path(path).name):
            checkpoint.write(contents, path)
            if Path(path) == self.files.last:
                self.files.saved = contents["global_step"]

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        if self.start is not None and Path(path) == self.start.file:
            self.files.saved, contents = self.start.step, self.start.contents
            return {key: contents.pop(key) for key in [*contents]}  # once loaded, Lightning frees them
        return checkpoint.read(path)


class SaveCheckpoints(Checkpoint):
    """Save last.ckpt every n steps and at the end, step_00001000.ckpt, which is kept, every m steps, and best.ckpt.

    best.ckpt has the weights of the best validation. One whose write failed, or that was removed, does not count. A
    validation that is due at the same step comes first, because its figures are part of the other checkpoints.
    """

    state_key = (  # of Lightning's ModelCheckpoint, as in checkpoints of earlier versions
        "BestCheckpoint{'monitor': 'validation/selection', 'mode': 'max', 'every_n_train_steps': 0, "
        "'every_n_epochs': 1, 'train_time_interval': None}"
    )

    def __init__(self, files: RunFiles, every_n_steps: int, keep_every_n_steps: int) -> None:
        self.files, self.every_n_steps, self.keep_every_n_steps = files, every_n_steps, keep_every_n_steps
        self.score: Tensor | None = None  # of best.ckpt

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Forget the score of a best.ckpt that cannot be read, or of later steps with other settings."""
        other = True
        with suppress(ConfigError, KeyError):
            best = checkpoint.read(self.files.folder / "best.ckpt") if trainer.is_global_zero else {}
            other = best["global_step"] > trainer.global_step and best["minitx"]["config"] != module.config.to_dict()
        self.score = None if trainer.strategy.broadcast(other) else self.score

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save after an optimizer step without a validation."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0 and not validation_is_due(trainer):
            self._save(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Save the best weights, then the run; after the last step, the run is saved when training has ended."""
        score, file = torch.tensor(module.selection, dtype=torch.float64), self.files.folder / "best.ckpt"
        score = torch.where(score.isnan(), -torch.inf, score)
        if self.score is None or score > self.score or not trainer.strategy.broadcast(file.exists()):
            trainer.save_checkpoint(file, weights_only=True)
            if not trainer.strategy.broadcast(file.name in self.files.failures):
                self.score = score
        if trainer.global_step < trainer.max_steps:
            self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Save the completed run, after all other callbacks, or at a signal."""
        self._save(trainer, ended=True)

    def _save(self, trainer: pl.Trainer, ended: bool = False) -> None:
        """Save if an interval is complete, the run has ended, or a resumed run has done the validation that was due."""
        step, keep = trainer.global_step, self.keep_every_n_steps
        last = ended or step % self.every_n_steps == 0 or step == self.files.saved
        for name in [f"step_{step:08d}"] * bool(keep and step % keep == 0) + ["last"] * last:
            for logger in trainer.loggers:
                logger.save()  # the curves up to here, so that a resumed run has no gap
            trainer.save_checkpoint(self.files.folder / f"{name}.ckpt")

    def state_dict(self) -> dict[str, Any]:
        return {"best_model_score": self.score}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.score = state_dict.get("best_model_score")
