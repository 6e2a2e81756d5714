"""Lightning's checkpoints, written atomically and read without unpickling anything but tensors and plain types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from minitx import checkpoint
from minitx.training.disk import Disk
from minitx.training.module import SELECTION


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's own way of saving can leave half a file behind when it is killed; this one cannot.

    Args:
        disk: to write to, and to tell when that fails.
    """

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self.disk = disk

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
        return checkpoint.read(path, map_location or "cpu")


class LastCheckpoint(ModelCheckpoint):
    """last.ckpt every n steps, and once more at the end of the run, whatever n is."""

    def __init__(self, folder: Path, every_n_steps: int) -> None:
        super().__init__(
            folder, filename="last", every_n_train_steps=every_n_steps, save_top_k=1, enable_version_counter=False
        )

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save the finished run."""
        if trainer.global_step == trainer.max_steps:
            trainer.save_checkpoint(f"{self.dirpath}/last.ckpt")


class BestCheckpoint(ModelCheckpoint):
    """best.ckpt by validation, the weights only; one that could not be written, or is gone, counts for nothing."""

    def __init__(self, disk: Disk) -> None:
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
        """Save the best, and remember it as the best only if it is there."""
        gone = self.best_model_score is not None and not Path(self.best_model_path).exists()
        if trainer.strategy.broadcast(gone):
            self._forget()
        before = {**self.state_dict(), "best_k_models": dict(self.best_k_models)}
        super().on_validation_end(trainer, module)
        if trainer.strategy.broadcast("best.ckpt" in self.disk.troubles):
            self.load_state_dict(before)

    def _forget(self) -> None:
        self.best_k_models, self.best_model_path, self.kth_best_model_path = {}, "", ""
        self.best_model_score = self.current_score = None


def checkpoint_callbacks(disk: Disk, every_n_steps: int) -> list[Callback]:
    """last.ckpt by steps, with all that resuming needs; best.ckpt by validation."""
    return [LastCheckpoint(disk.folder, every_n_steps), BestCheckpoint(disk)]
