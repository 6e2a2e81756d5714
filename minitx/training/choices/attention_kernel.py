"""The attention kernel of training in half precision on a CPU, measured before the run or from its checkpoint."""

from contextlib import AbstractContextManager
from typing import Any

import lightning.pytorch as pl

from minitx.training.choices.numerics import training_kernel
from minitx.training.module import RunCallback


class AttentionKernel(RunCallback):
    """Train with one of CPU_HALF_KERNELS, and save its name in checkpoints."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def around(self, trainer: pl.Trainer) -> AbstractContextManager[None]:
        return training_kernel(self.kernel)

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, contents: dict[str, Any]) -> None:
        contents["attention_kernel"] = self.kernel
