"""Hooks of a run beyond Lightning's own."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from minitx.config.schema import Config


class RunCallback(Callback):
    """A Lightning callback with hooks around training. Each hook does nothing by default."""

    first: ClassVar[bool] = False
    """Run before the progress line and all other callbacks."""

    def around(self, trainer: pl.Trainer) -> AbstractContextManager[None]:
        """A context for training and evaluation."""
        return nullcontext()

    def on_launch(self) -> None:
        """Called once all processes have started."""

    def on_trained(self) -> None:
        """Called after training is complete and saved, before the evaluation."""

    def on_results(self, trainer: pl.Trainer, config: Config, results: dict[str, Any]) -> None:
        """Called in the first process after the evaluation, before results.json is written."""
