"""Whether torch.compile pays is not known beforehand: `trainer.compile: auto` tries it, early in a run on a GPU."""

from __future__ import annotations

import statistics
import time
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch.distributed.fsdp import FSDPModule

from minitx.data.batch import Batch
from minitx.hardware.devices import finished_at
from minitx.training.folder import say
from minitx.training.module import TransformerModule

DEVICES = ("cuda",)
"""Where it is tried. On a CPU the trial costs more than most runs could save."""
FIRST = 50
"""Batches before the trial: the machine is warm then, and there is still all to gain."""
WORTH = 180.0
"""Seconds of eager forwards and backwards that must be ahead: compiling takes about a minute, and saves a third."""
REPEATS = 7
"""Of a step, for either time."""


class AutoCompile(Callback):
    """Compiles the model for the rest of a run, if that is long enough and the compiled step the faster one.

    The trial repeats forward and backward of one batch and leaves no trace: weights and gradients are not touched, and
    what is drawn at random depends on the number of the batch alone.
    """

    def __init__(self) -> None:
        self._batches = 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Behind the last of the first batches, decide."""
        assert isinstance(module, TransformerModule)
        self._batches += 1
        # Weights that are spread over processes are gathered by hooks that a trial would confuse.
        if self._batches != FIRST or module.device.type not in DEVICES or isinstance(module.model, FSDPModule):
            return
        ahead = trainer.max_steps * trainer.accumulate_grad_batches - trainer.fit_loop.total_batch_idx - 1
        try:
            eager = _seconds(trainer, module, batch)
        except torch.OutOfMemoryError:  # a second set of gradients was too much: the run itself needs none
            eager = 0.0
        if trainer.strategy.broadcast(eager * ahead) < WORTH:
            return
        if trainer.is_global_zero:
            say(f"compiling the training step: at {1e3 * eager:.2f} ms, {eager * ahead / 60:.0f} minutes are ahead")
        began = time.perf_counter()
        module.model.compile()
        try:
            _step(trainer, module, batch)
            took, compiled = finished_at(module.device) - began, _seconds(trainer, module, batch)
            outcome = f"compiled in {took:.0f} s: {1e3 * compiled:.2f} ms instead of {1e3 * eager:.2f}"
            slower = compiled >= eager
        except Exception as error:  # no compiler on the machine, an old card: the run does not depend on it
            outcome, slower = f"compiling failed ({' '.join(str(error).split())[:200]})", True
        if not trainer.strategy.reduce_boolean_decision(not slower, all=True):
            module.model._compiled_call_impl = None  # torch has no public way back
            outcome += "; the run goes on without"
        if trainer.is_global_zero:
            say(outcome)


def _step(trainer: pl.Trainer, module: TransformerModule, batch: Batch) -> None:
    """Forward and backward; no weight's gradient is changed."""
    weights = [weight for weight in module.model.parameters() if weight.requires_grad]
    with trainer.precision_plugin.train_step_context():
        loss = module.summed_loss(batch)
    torch.autograd.grad(loss, weights, allow_unused=True)


def _seconds(trainer: pl.Trainer, module: TransformerModule, batch: Batch) -> float:
    """Of a step, the median of some."""
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        _step(trainer, module, batch)
        found.append(finished_at(module.device) - began)
    return statistics.median(found)
