"""`trainer.compile: auto`: compile the training step on a GPU, measure it, and keep the faster one."""

import statistics
import time
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch.distributed.fsdp import FSDPModule

from minitx.data.batch import Batch
from minitx.hardware.devices import finished_at
from minitx.training.folder import print_line
from minitx.training.module import TransformerModule

DEVICES = ("cuda",)
"""Devices to try it on. On a CPU the trial costs more than most runs could save."""
TRIAL_AFTER_BATCHES = 50
"""Late enough for a warm machine, early enough for most of the gain."""
MIN_SECONDS_LEFT = 180.0
"""Eager forwards and backwards left in the run: compiling takes about a minute and saves a third."""
REPEATS = 7
"""Steps per measurement."""


class AutoCompile(Callback):
    """Compile the model for the rest of a long run, if the compiled step is faster.

    The trial repeats forward and backward of one batch without a side effect: weights and gradients are unchanged, and
    the random seed depends on the number of the batch alone.
    """

    def __init__(self) -> None:
        self._batches = 0

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Decide, once, after TRIAL_AFTER_BATCHES."""
        self._batches += 1
        sharded = isinstance(module.model, FSDPModule)  # hooks that gather weights do not work in a trial
        if self._batches != TRIAL_AFTER_BATCHES or module.device.type not in DEVICES or sharded:
            return
        left = trainer.max_steps * trainer.accumulate_grad_batches - trainer.fit_loop.total_batch_idx - 1
        try:
            eager = _step_seconds(trainer, module, batch)
        except torch.OutOfMemoryError:  # of the second set of gradients, which the run itself does not need
            eager = 0.0
        if trainer.strategy.broadcast(eager * left) < MIN_SECONDS_LEFT:
            return
        if trainer.is_global_zero:
            print_line(f"compiling the training step: {1e3 * eager:.2f} ms, {eager * left / 60:.0f} minutes left")
        started = time.perf_counter()
        module.model.compile()
        try:
            _step(trainer, module, batch)
            took, compiled = finished_at(module.device) - started, _step_seconds(trainer, module, batch)
            outcome = f"compiled in {took:.0f} s: {1e3 * compiled:.2f} ms instead of {1e3 * eager:.2f}"
            faster = compiled < eager
        except Exception as error:  # such as no compiler on the machine; training works without
            outcome, faster = f"compiling failed ({' '.join(str(error).split())[:200]})", False
        if not trainer.strategy.reduce_boolean_decision(faster, all=True):
            module.model._compiled_call_impl = None  # torch has no public undo
            outcome += "; training continues without"
        if trainer.is_global_zero:
            print_line(outcome)


def _step(trainer: pl.Trainer, module: TransformerModule, batch: Batch) -> None:
    """Forward and backward, without a change of any weight's gradient."""
    weights = [weight for weight in module.model.parameters() if weight.requires_grad]
    with trainer.precision_plugin.train_step_context():
        loss = module.summed_loss(batch)
    torch.autograd.grad(loss, weights, allow_unused=True)


def _step_seconds(trainer: pl.Trainer, module: TransformerModule, batch: Batch) -> float:
    """Median duration of a step."""
    durations = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        _step(trainer, module, batch)
        durations.append(finished_at(module.device) - started)
    return statistics.median(durations)
