"""Losses and gradients that are not finite: they change no weight, and the run stops and says where they come from.

A step whose loss or gradient is not finite is kept from the weights and from the optimiser's states, so that what is
saved is good. All processes see the same: the losses are counted over all of them together with the labels, and a
gradient that is averaged is not finite in any of them once it is so in one.

On a CPU the step is simply not taken. On a GPU to ask would be to wait, in each step; there the optimizer is handed a
tensor instead, and nobody looks before there is something to log, to validate or to save. Until then no further step is
taken either. Batches and dropout are functions of the step's number: the step can be done once more, to see where it
fails.
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
from minitx.training.optim import schedule
from minitx.training.resilience.nonfinite import FiniteSteps
from minitx.training.resilience.signals import launched_by_lightning
from minitx.training.sharding import whole

MOST_IN_A_ROW = 50
"""Steps one after another that may be skipped; fp16 needs up to twenty to find the scale of its gradients."""


class StopOnDivergence(RunCallback):
    """Ends the run when a loss or a gradient is not finite, or, where such steps are skipped, too many in a row.

    Args:
        config: of the run.
        disk: knows what is saved.
    """

    first = True

    def __init__(self, config: Config, disk: RunFiles) -> None:
        self.config, self.disk = config, disk

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        """Keep steps that are not finite from the weights."""
        assert isinstance(module, TransformerModule)
        module.steps = FiniteSteps(self.config.trainer.skip_nonfinite_steps)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look, as often as it costs nothing, and before anything is logged, validated or saved."""
        assert isinstance(module, TransformerModule)
        settings, step = self.config.trainer, trainer.global_step
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        intervals = (settings.save_every_n_steps, settings.keep_every_n_steps)
        saves = step == trainer.max_steps or any(every and step % every == 0 for every in intervals)
        seen = step % self.config.log.every_n_steps == 0 or step % settings.val_every_n_steps == 0
        steps = module.steps
        assert isinstance(steps, FiniteSteps)
        if steps.deferred and not (saves or seen):
            return
        if int(steps.in_a_row) > (MOST_IN_A_ROW if settings.skip_nonfinite_steps else 0):
            self._stop(trainer, module, int(steps.first), float(steps.norm))
        if int(steps.overflows) > MOST_IN_A_ROW:
            self._stop(trainer, module, step - 1, float(steps.norm))
        if saves and not bool(whole(get_total_norm(module.parameters(), math.inf)).isfinite()):
            self._stop(trainer, module, step - 1, float(steps.norm))

    def _stop(self, trainer: pl.Trainer, module: TransformerModule, done: int, norm: float) -> None:
        """Do the step behind the first `done` once more, and say what came of it.

        Raises:
            RunFailed: always, in the first process.
            SystemExit: always, in the others.
        """
        loss, where = again(trainer, module, done)
        if not trainer.is_global_zero:
            raise SystemExit(0 if launched_by_lightning(trainer) else 1)
        rate = self.config.optimizer.lr * schedule(self.config.optimizer.schedule, trainer.max_steps)(done)
        clipped = self.config.trainer.gradient_clip_val
        advice = [
            f"a lower optimizer.lr than {self.config.optimizer.lr:g}",
            f"a longer optimizer.schedule.warmup_steps than {self.config.optimizer.schedule.warmup_steps}",
            f"a lower trainer.gradient_clip_val than {clipped:g}" if clipped else "trainer.gradient_clip_val 1",
        ]
        skips = self.config.trainer.skip_nonfinite_steps
        row = f" (and {MOST_IN_A_ROW} more behind it, which were skipped)" if skips else ""
        kept = (
            "nothing was saved before" if self.disk.saved is None else f"last.ckpt of step {self.disk.saved:,} is kept"
        )
        raise RunFailed(
            f"training diverged at step {done + 1:,}{row}: loss {loss:.4g}, learning rate {rate:.3g}, gradient norm "
            f"{norm:.3g}; {where}. {kept[0].upper()}{kept[1:]}. Try {', '.join(advice[:-1])} or {advice[-1]}"
            + ("" if skips else "; trainer.skip_nonfinite_steps true passes over such steps")
        )


def again(trainer: pl.Trainer, module: TransformerModule, done: int) -> tuple[float, str]:
    """Do the step behind the first `done` once more, with the weights at hand, which it has not changed.

    All processes must take part.

    Returns:
        The loss of the batch that shows it, else of the last one; and a clause that names the place.
    """
    names = {part: name for name, part in module.model.named_modules()}
    weights = [name for name, weight in module.model.named_parameters() if not bool(weight.isfinite().all())]
    found: list[str] = []
    loss, first = math.nan, done * trainer.accumulate_grad_batches

    def forward(part: nn.Module, _read: Any, out: Any) -> None:
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
            found.append(f"it first shows in the backward, in the gradient of what {where} puts out")

    hooks = [part.register_forward_hook(forward) for part in names]
    try:
        with torch.compiler.set_stance("force_eager"), trainer.precision_plugin.train_step_context():
            batches = trainer.train_dataloader.step(first)  # type: ignore[union-attr]
            for number, batch in enumerate(batches, start=first):
                module.reseed(number)
                batch = trainer.strategy.batch_to_device(batch)
                total = module.summed_loss(batch)
                loss = float(total.detach() / count(batch.labels))
                # Together, as spread weights are brought together for the backward as well.
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
        where = "all layers' outputs are finite, the loss of them is not"
    else:
        where = "done once more, the step is finite: its gradients overflow together, or the hardware has erred"
    return _agreed(trainer, loss, where, bool(weights or found) or not math.isfinite(loss))


def _agreed(trainer: pl.Trainer, loss: float, where: str, shows: bool) -> tuple[float, str]:
    """What the first process says in which it shows."""
    if trainer.world_size == 1:
        return loss, where
    told: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(told, (loss, where, shows))
    rank = next((rank for rank, (*_, shown) in enumerate(told) if shown), 0)
    return told[rank][0], f"{told[rank][1]}, in process {rank}"
