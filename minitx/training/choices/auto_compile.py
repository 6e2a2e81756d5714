"""`trainer.compile: auto`: compile the training step on a GPU, if a measurement finds that faster."""

import time
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from minitx.data.batch import Batch
from minitx.hardware.machine import finished_at
from minitx.hardware.races import Seconds, decide
from minitx.training.folder import print_line
from minitx.training.module import TransformerModule

DEVICES = ("cuda",)
"""Devices on which compilation and CUDA graphs are tried. On a CPU each new length of a batch can cost another
minute of compiling."""
TRIAL_AFTER_BATCHES = 50
"""Late enough for a warm machine, early enough for most of the gain."""
MIN_SECONDS_LEFT = 180.0
"""Minimum time of the eager forwards and backwards that are left: less would not outweigh a minute of compiling."""
EAGER, COMPILED = "eager", "compiled"
REPEATS = 7
"""Steps per measurement."""


class AutoCompile(Callback):
    """Compile the model for the rest of a long run, if the compiled step is faster.

    The trial repeats forward and backward of one batch without a side effect: weights and gradients are unchanged, and
    the random seed depends on the number of the batch alone. Once a few runs agree, others use their choice without a
    trial, at the same batch. A resumed run continues as it was.
    """

    def __init__(self) -> None:
        self.batches, self.compiled = 0, False

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "compiled": self.compiled}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches, self.compiled = state_dict["batches"], state_dict["compiled"]

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Compile a resumed run that was compiled; after this the module seeds dropout for the batch."""
        if self.compiled and module.model._compiled_call_impl is None:
            try:
                _compile(trainer, module, batch)
            except Exception as error:
                self._continue_eager(trainer, module, _failure(error))

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Decide, once, after TRIAL_AFTER_BATCHES."""
        self.batches += 1
        if self.batches != TRIAL_AFTER_BATCHES:
            return
        left = trainer.max_steps * trainer.accumulate_grad_batches - trainer.fit_loop.total_batch_idx - 1
        try:
            eager, _ = step_seconds(trainer, module, batch)
        except torch.OutOfMemoryError:  # of the second set of gradients, which the run itself does not need
            eager = 0.0
        if trainer.strategy.broadcast(eager * left) < MIN_SECONDS_LEFT:
            return
        report = print_line if trainer.is_global_zero else lambda line: None

        def trial() -> Seconds:
            report(f"compiling the training step ({1e3 * eager:.2f} ms), {eager * left / 60:.0f} minutes left")
            _compile(trainer, module, batch)
            return {EAGER: eager, COMPILED: step_seconds(trainer, module, batch)[0]}

        config, settings = module.config, module.config.trainer
        subject = [config.to_dict()["model"], config.data, settings.precision, trainer.world_size]
        graphed = module.step_loss != module.summed_loss
        subject += [settings.accumulate_grad_batches, settings.recompute_activations, graphed]
        try:
            chosen, seconds = decide(subject, (EAGER, COMPILED), trial)
            if chosen == COMPILED and module.model._compiled_call_impl is None:
                _compile(trainer, module, batch)
            outcome = f"compiled: {1e3 * seconds[COMPILED]:.2f} ms instead of {1e3 * seconds[EAGER]:.2f}"
        except Exception as error:  # such as no compiler on the machine; training works without
            chosen, outcome = EAGER, _failure(error)
        self.compiled = trainer.strategy.reduce_boolean_decision(chosen == COMPILED, all=True)
        if self.compiled:
            report(outcome)
        else:
            self._continue_eager(trainer, module, outcome)

    def _continue_eager(self, trainer: pl.Trainer, module: TransformerModule, reason: str) -> None:
        self.compiled, module.model._compiled_call_impl = False, None  # torch has no public undo
        if trainer.is_global_zero:
            print_line(f"{reason}; training continues without it")


def _failure(error: Exception) -> str:
    return f"compiling failed ({in_one_line(error)})"


def in_one_line(error: Exception) -> str:
    """The beginning of an error's message, in one line."""
    return " ".join(str(error).split())[:200]


def _compile(trainer: pl.Trainer, module: TransformerModule, batch: Batch) -> None:
    """Compile the model, and run a step, in which torch compiles."""
    module.model.compile()
    loss_gradients(trainer, module, batch)


def loss_gradients(trainer: pl.Trainer, module: TransformerModule, batch: Batch, loss: Any = None) -> list[Any]:
    """Gradients of module.step_loss or another loss; the weights keep theirs. Nothing is averaged over processes."""
    weights = [weight for weight in module.model.parameters() if weight.requires_grad]
    kept = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    try:
        with trainer.precision_plugin.train_step_context():
            summed = (loss or module.step_loss)(batch)
        summed.backward()
        return [weight.grad for weight in weights]
    finally:
        for weight, gradient in zip(weights, kept, strict=True):
            weight.grad = gradient


def step_seconds(trainer: pl.Trainer, module: TransformerModule, batch: Batch) -> tuple[float, float]:
    """The shortest duration of forward and backward, and of launching their kernels within it."""
    durations = []
    for _ in range(REPEATS):
        started = finished_at(module.device)
        loss_gradients(trainer, module, batch)
        launched = time.perf_counter()
        durations.append((finished_at(module.device) - started, launched - started))
    return min(durations)
