"""Losses and gradients that are not finite: the run stops, with its weights unchanged, and reports their origin.

FiniteSteps skips the step, so that no checkpoint holds its result. All processes agree: the losses are counted over
all of them, and an averaged gradient that is not finite in one is not finite in any.

On a GPU, reading the counters would synchronize in every step. The optimizer skips steps on the device instead, and the
counters are read only before a log, a validation or a save. Batches and dropout depend on the number of a step alone,
so the step can be replayed to find its first non-finite tensor.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from minitx.config.errors import RunFailed
from minitx.config.schema import Config
from minitx.training.folder import RunFiles
from minitx.training.hooks import RunCallback
from minitx.training.losses import count
from minitx.training.module import TransformerModule
from minitx.training.optim import schedule, unsharded
from minitx.training.resilience.nonfinite import FiniteSteps
from minitx.training.resilience.signals import launched_by_lightning

MAX_SKIPPED_IN_A_ROW = 50
"""Consecutive steps that may be skipped; fp16 needs up to twenty to find the scale of its gradients."""


class StopOnDivergence(RunCallback):
    """End the run at a loss or gradient that is not finite, or after too many in a row where steps are skipped.

    Args:
        config: of the run.
        files: of the run.
    """

    first = True

    def __init__(self, config: Config, files: RunFiles) -> None:
        self.config, self.files = config, files

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        """Skip steps that are not finite."""
        assert isinstance(module, TransformerModule)
        module.steps = FiniteSteps(self.config.trainer.skip_nonfinite_steps)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Read the counters where that is free, and before a log, a validation or a save."""
        assert isinstance(module, TransformerModule)
        settings, step = self.config.trainer, trainer.global_step
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        intervals = (settings.save_every_n_steps, settings.keep_every_n_steps)
        saves = step == trainer.max_steps or any(every and step % every == 0 for every in intervals)
        reported = step % self.config.log.every_n_steps == 0 or step % settings.val_every_n_steps == 0
        steps = module.steps
        assert isinstance(steps, FiniteSteps)
        if steps.deferred and not (saves or reported):
            return
        if int(steps.in_a_row) > (MAX_SKIPPED_IN_A_ROW if settings.skip_nonfinite_steps else 0):
            self._stop(trainer, module, int(steps.first), float(steps.norm))
        if int(steps.overflows) > MAX_SKIPPED_IN_A_ROW:
            self._stop(trainer, module, step - 1, float(steps.norm))
        if saves and not bool(unsharded(get_total_norm(module.parameters(), math.inf)).isfinite()):
            self._stop(trainer, module, step - 1, float(steps.norm))

    def _stop(self, trainer: pl.Trainer, module: TransformerModule, done: int, norm: float) -> None:
        """Replay the step after the first `done`, and report the outcome.

        Raises:
            RunFailed: always, in the first process.
            SystemExit: always, in the others.
        """
        loss, where = replay(trainer, module, done)
        if not trainer.is_global_zero:
            raise SystemExit(0 if launched_by_lightning(trainer) else 1)
        rate = self.config.optimizer.lr * schedule(self.config.optimizer.schedule, trainer.max_steps)(done)
        clip = self.config.trainer.gradient_clip_val
        advice = [
            f"a lower optimizer.lr than {self.config.optimizer.lr:g}",
            f"a longer optimizer.schedule.warmup_steps than {self.config.optimizer.schedule.warmup_steps}",
            f"a lower trainer.gradient_clip_val than {clip:g}" if clip else "trainer.gradient_clip_val 1",
        ]
        skips = self.config.trainer.skip_nonfinite_steps
        row = f" (and {MAX_SKIPPED_IN_A_ROW} more after it, which were skipped)" if skips else ""
        kept = (
            "nothing was saved before"
            if self.files.saved is None
            else f"last.ckpt of step {self.files.saved:,} is kept"
        )
        raise RunFailed(
            f"training diverged at step {done + 1:,}{row}: loss {loss:.4g}, learning rate {rate:.3g}, gradient norm "
            f"{norm:.3g}; {where}. {kept[0].upper()}{kept[1:]}. Try {', '.join(advice[:-1])} or {advice[-1]}"
            + ("" if skips else "; trainer.skip_nonfinite_steps true skips such steps")
        )


def replay(trainer: pl.Trainer, module: TransformerModule, done: int) -> tuple[float, str]:
    """Replay the step after the first `done` with the current weights, in all processes.

    Returns:
        The loss of the first batch with a non-finite tensor, else of the last one; and a clause that names its origin.
    """
    names = {part: name for name, part in module.model.named_modules()}
    weights = [name for name, weight in module.model.named_parameters() if not bool(weight.isfinite().all())]
    found: list[str] = []
    loss, first = math.nan, done * trainer.accumulate_grad_batches

    def forward(part: nn.Module, _inputs: Any, out: Any) -> None:
        for tensor in (out,) if isinstance(out, Tensor) else out if isinstance(out, tuple | list) else ():
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                continue
            where = f"{names[part] or 'the model'} ({type(part).__name__})"
            if not bool(tensor.isfinite().all()):
                found.append(f"it first shows in the output of {where}")
            elif tensor.requires_grad:
                tensor.register_hook(partial(backward, where))

    def backward(where: str, gradient: Tensor) -> None:
        if not bool(gradient.isfinite().all()):
            found.append(f"it first shows in the backward, in the gradient of the output of {where}")

    hooks = [part.register_forward_hook(forward) for part in names]
    try:
        with torch.compiler.set_stance("force_eager"), trainer.precision_plugin.train_step_context():
            batches = trainer.train_dataloader.step(first)  # type: ignore[union-attr]
            for number, batch in enumerate(batches, start=first):
                module.reseed(number)
                batch = trainer.strategy.batch_to_device(batch)
                total = module.summed_loss(batch)
                loss = float(total.detach() / count(batch.labels))
                # All processes stop at the same batch, because the backward gathers sharded weights.
                if trainer.strategy.reduce_boolean_decision(bool(found) or not math.isfinite(loss), all=False):
                    break
                total.backward()
    finally:
        for hook in hooks:
            hook.remove()
    if weights:
        where = f"the weights {weights[0]} are not finite"
    elif found:
        where = found[0]
    elif not math.isfinite(loss):
        where = "all layers' outputs are finite, but the loss is not"
    else:
        where = "the replayed step is finite: the norm of its gradients overflows, or the hardware has erred"
    return _agreed(trainer, loss, where, bool(weights or found) or not math.isfinite(loss))


def _agreed(trainer: pl.Trainer, loss: float, where: str, shows: bool) -> tuple[float, str]:
    """The finding of the first process that has one, in all processes."""
    if trainer.world_size == 1:
        return loss, where
    findings: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(findings, (loss, where, shows))
    rank = next((rank for rank, (*_, shown) in enumerate(findings) if shown), 0)
    return findings[rank][0], f"{findings[rank][1]}, in process {rank}"
