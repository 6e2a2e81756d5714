"""Hooks of a run beyond Lightning's own, for callbacks that a caller hands over."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from minitx.config.schema import Config


class RunCallback(Callback):
    """A Lightning callback that may also act around training. Every hook does nothing by default."""

    first: ClassVar[bool] = False
    """Whether it comes before the progress line and whatever else looks at a step."""

    def around(self, trainer: pl.Trainer) -> AbstractContextManager[None]:
        """A block around training and evaluation."""
        return nullcontext()

    def on_launch(self) -> None:
        """All processes are started."""

    def on_trained(self) -> None:
        """Training has ended and is saved; the evaluation follows."""

    def on_results(self, trainer: pl.Trainer, config: Config, results: dict[str, Any]) -> None:
        """The run is evaluated; called in the process that writes files, before results.json is written."""
