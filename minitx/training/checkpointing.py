"""Lightning's checkpoints, written atomically and read without unpickling anything but tensors and plain types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from minitx.checkpoints import format as checkpoint
from minitx.config.schema import TrainerConfig
from minitx.training.folder import RunFiles
from minitx.training.module import SELECTION, TransformerModule
from minitx.training.resume import validation_is_due
from minitx.training.start import Start


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's own way of saving can leave half a file behind when it is killed; this one cannot.

    Args:
        disk: the run's files.
        start: the checkpoint of a run to resume, read already.
    """

    def __init__(self, disk: RunFiles, start: Start | None = None) -> None:
        super().__init__()
        self.disk, self.start = disk, start

    def save_checkpoint(self, contents: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write whole or not at all, and go on either way."""
        path, step = Path(path), contents["global_step"]
        before = f"the one of step {self.disk.saved:,} is kept" if self.disk.saved is not None else "there is none yet"
        if path != self.disk.last:
            before = "the one before, if there is one, is kept"
        with self.disk.writing(path.name, f"{before}, training goes on, and the next save tries again"):
            checkpoint.write(contents, path)
            if path == self.disk.last:
                self.disk.saved = step

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint of ours, and nothing else."""
        if self.start is not None and Path(path) == self.start.file:
            return self.start.contents
        return checkpoint.read(path, map_location or "cpu")


class SaveCheckpoints(Checkpoint):
    """last.ckpt every n steps and at the end of the run; and step_00001000.ckpt, which stays, every m steps.

    Where a validation is due at the same step, it comes first: what it finds is part of the run.

    Args:
        folder: of the run.
        every_n_steps: steps between saves of last.ckpt.
        keep_every_n_steps: steps between checkpoints that stay; 0 keeps none.
    """

    def __init__(self, folder: Path, every_n_steps: int, keep_every_n_steps: int = 0) -> None:
        self.folder, self.every_n_steps, self.keep_every_n_steps = folder, every_n_steps, keep_every_n_steps
        self._step = 0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Nothing to save yet."""
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save behind a whole step, if no validation is to come first."""
        if trainer.global_step > self._step:
            self._step = trainer.global_step
            if not validation_is_due(trainer):
                self._save(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save what had to wait for the validation."""
        if trainer.state.fn == "fit" and validation_is_due(trainer):
            assert isinstance(module, TransformerModule)
            module.let_go()  # the optimiser's states are those of spread weights
            self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save the finished run, behind everything that others write at its end."""
        if trainer.global_step == trainer.max_steps:
            self._write(trainer, last=True)

    def _save(self, trainer: pl.Trainer) -> None:
        """Save if it is time; the last step is saved at the end of the run, not before."""
        if trainer.global_step < trainer.max_steps:
            self._write(trainer, last=not trainer.global_step % self.every_n_steps)

    def _write(self, trainer: pl.Trainer, last: bool) -> None:
        step, keep = trainer.global_step, self.keep_every_n_steps
        names = [f"step_{step:08d}"] if keep and not step % keep else []
        for name in [*names, "last"] if last else names:
            if trainer.is_global_zero and trainer.logger is not None:
                trainer.logger.save()  # the curves up to here, so that a run that goes on from here has no gap
            trainer.save_checkpoint(self.folder / f"{name}.ckpt")


class BestCheckpoint(ModelCheckpoint):
    """best.ckpt by validation, the weights only; one that could not be written, or is gone, counts for nothing."""

    def __init__(self, disk: RunFiles) -> None:
        super().__init__(
            disk.folder,
            filename="best",
            monitor=SELECTION,
            mode="max",
            save_top_k=1,
            save_weights_only=True,
            enable_version_counter=False,
        )
        self.disk = disk

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Choose among the validations of the plan only: one because of a signal would not be in a run without it.

        What could not be written is not remembered as the best.
        """
        if not validation_is_due(trainer):
            return
        gone = self.best_model_score is not None and not Path(self.best_model_path).exists()
        if trainer.strategy.broadcast(gone):
            self._forget()
        before = {**self.state_dict(), "best_k_models": dict(self.best_k_models)}
        super().on_validation_end(trainer, module)
        if trainer.strategy.broadcast("best.ckpt" in self.disk.troubles):
            super().load_state_dict(before)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on choosing, wherever the folder is now; from the beginning if best.ckpt is gone."""
        file = Path(str(self.dirpath)) / "best.ckpt"
        if file.is_file():
            scores = dict(zip([str(file)], state_dict["best_k_models"].values(), strict=False))
            paths = dict.fromkeys(("best_model_path", "kth_best_model_path"), str(file))
            super().load_state_dict({**state_dict, **paths, "dirpath": self.dirpath, "best_k_models": scores})

    def _forget(self) -> None:
        self.best_k_models, self.best_model_path, self.kth_best_model_path = {}, "", ""
        self.best_model_score = self.current_score = None


def checkpoint_callbacks(disk: RunFiles, config: TrainerConfig) -> list[Callback]:
    """best.ckpt by validation, the weights only; last.ckpt by steps, with all that resuming needs."""
    every = min(config.save_every_n_steps, config.max_steps)
    return [BestCheckpoint(disk), SaveCheckpoints(disk.folder, every, config.keep_every_n_steps)]
