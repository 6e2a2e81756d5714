"""Lightning's checkpoints, written atomically and read without unpickling anything but tensors and plain types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from minitx import checkpoint
from minitx.training.module import SELECTION


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's own way of saving can leave half a file behind when it is killed; this one cannot."""

    def save_checkpoint(self, contents: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write whole or not at all."""
        checkpoint.write(contents, path)

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


def checkpoint_callbacks(folder: Path, every_n_steps: int) -> list[Callback]:
    """last.ckpt by steps, with all that resuming needs; best.ckpt by validation, the weights only."""
    best = ModelCheckpoint(
        folder,
        filename="best",
        monitor=SELECTION,
        mode="max",
        save_top_k=1,
        save_weights_only=True,
        enable_version_counter=False,
    )
    return [LastCheckpoint(folder, every_n_steps), best]
