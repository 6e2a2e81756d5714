"""Losses and gradients that are not finite: the run stops, with its weights unchanged, and reports their origin.

FiniteSteps skips the step, so that no checkpoint holds its result. All processes agree: the losses are counted over
all of them, and an averaged gradient that is not finite in one is not finite in any.

On a GPU, reading the counters would synchronize in every step. The optimizer skips steps on the device instead, and the
counters are read only before a log, a validation or a save. Batches and dropout depend on the number of a step alone,
so the step can be replayed to find its first non-finite tensor.
"""

import math
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from minitx.config.errors import RunFailed
from minitx.config.schema import Config
from minitx.hardware.devices import moved
from minitx.training.folder import RunFiles
from minitx.training.losses import count
from minitx.training.module import EveryStep, TransformerModule
from minitx.training.optim import schedule, skips_on_device
from minitx.training.resilience.signals import launched_by_lightning

MAX_SKIPPED_IN_A_ROW = 50
"""Consecutive steps that may be skipped; fp16 needs up to twenty to find the scale of its gradients."""


class FiniteSteps(EveryStep):
    """Skip and count steps whose loss or gradient is not finite: weights and optimizer states are unchanged.

    Unless `skip` is True, every later step is skipped as well.
    """

    def __init__(self, skip: bool) -> None:
        self.skip = skip
        self.deferred = False  # whether reading the counters below would synchronize with a device
        self.in_a_row = torch.tensor(0)  # skipped steps up to now
        self.overflows = torch.tensor(0)  # steps in a row whose fp16 gradient was too large for its scale
        self.first = torch.tensor(0)  # number of the first step in the row, from 0
        self.norm = torch.tensor(0.0)  # of its gradient
        self._losses: Tensor | int = 0

    def add_losses(self, nonfinite: Tensor) -> None:
        self._losses = self._losses + nonfinite

    def before_step(self, optimizer: Optimizer, norm: Tensor, step: int, scaler: GradScaler | None) -> None:
        """Decide whether the optimizer skips the coming step."""
        losses, self._losses = self._losses, 0
        if norm.device.type == "cpu" and norm.isfinite() and not (losses or self.in_a_row or self.overflows):
            return  # reading a number is free there, and counting takes twenty operators
        overflow, bad = ~norm.isfinite(), torch.as_tensor(losses > 0)
        if scaler is None:
            bad = bad | overflow
        else:  # which skips the steps of overflows itself
            self.overflows = (moved(self.overflows, norm.device) + 1) * overflow
        before = moved(self.in_a_row, norm.device)
        if not self.skip:
            bad = bad | (before > 0)
        starts = bad & (before == 0)
        self.in_a_row = (before + 1) * bad
        self.skipped = moved(self.skipped, norm.device) + bad
        self.first = torch.where(starts, step, moved(self.first, norm.device))
        self.norm = torch.where(starts, norm, moved(self.norm, norm.device))
        self.deferred = norm.is_cuda and skips_on_device(optimizer)
        if not self.deferred:
            if bad:
                optimizer.zero_grad(set_to_none=True)  # an optimizer ignores weights without a gradient
        elif scaler is None:
            optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # as torch's GradScaler sets it
        else:
            for found in scaler._found_inf_per_device(optimizer).values():  # the scaler passes them on, 0 or 1
                found.masked_fill_(bad, 1.0)


class StopOnDivergence(Callback):
    """End the run at a loss or gradient that is not finite, or after too many in a row if steps are skipped."""

    def __init__(self, config: Config, files: RunFiles) -> None:
        self.config, self.files = config, files
        self.steps = FiniteSteps(config.trainer.skip_nonfinite_steps)

    def setup(self, trainer: pl.Trainer, module: Any, stage: str) -> None:
        module.steps = self.steps

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self.steps, name).item() for name in ("in_a_row", "overflows", "first", "norm")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue to count; a row that was skipped does not end a run that skips no steps any more."""
        for name in self.state_dict():
            setattr(self.steps, name, torch.tensor(state_dict[name]))
        self.steps.in_a_row *= self.steps.skip

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Read the counters if that is free, and before a log, a validation or a save."""
        settings, steps, step = self.config.trainer, self.steps, trainer.global_step
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        intervals = (settings.save_every_n_steps, settings.keep_every_n_steps, settings.val_every_n_steps)
        saves = step == trainer.max_steps or any(every and step % every == 0 for every in intervals)
        if not steps.deferred or saves or step % self.config.log.every_n_steps == 0:
            self.check(trainer, module, saves)

    def check(self, trainer: pl.Trainer, module: Any, saves: bool) -> None:
        """Read the counters, and before a save the weights; end the run if it has diverged."""
        steps = self.steps
        if (skipped := int(steps.in_a_row)) > (MAX_SKIPPED_IN_A_ROW if steps.skip else 0):
            later = f" (and {skipped - 1} more after it, which were skipped)" if steps.skip else ""
            advice = "" if steps.skip else "; trainer.skip_nonfinite_steps true skips such steps"
            self._stop(trainer, module, int(steps.first), steps.norm, later, advice)
        overflowing = int(steps.overflows) > MAX_SKIPPED_IN_A_ROW
        if overflowing or (saves and not _are_finite(trainer, module)):
            self._stop(trainer, module, trainer.global_step - 1, module.gradient_norm)

    def _stop(
        self, trainer: pl.Trainer, module: TransformerModule, done: int, norm: Tensor, later: str = "", advice: str = ""
    ) -> None:
        """Replay the step after the first `done`, and end the run with the outcome."""
        loss, where = replay(trainer, module, done)
        if not trainer.is_global_zero:
            raise SystemExit(0 if launched_by_lightning(trainer) else 1)
        optimizer, clip, saved = self.config.optimizer, self.config.trainer.gradient_clip_val, self.files.saved
        rate = optimizer.lr * schedule(optimizer.schedule, trainer.max_steps)(done)
        kept = "Nothing was saved before" if saved is None else f"The last.ckpt of step {saved:,} is kept"
        warmup = f"a longer optimizer.schedule.warmup_steps than {optimizer.schedule.warmup_steps}"
        clipping = f"a lower trainer.gradient_clip_val than {clip:g}" if clip else "trainer.gradient_clip_val 1"
        advice = f"Try a lower optimizer.lr than {optimizer.lr:g}, {warmup} or {clipping}{advice}"
        if done == 0 and not where.startswith("the weights"):
            advice = "No weight has been changed yet: check the data, trainer.precision and classes of your own"
        figures = f"loss {loss:.4g}, learning rate {rate:.3g}, gradient norm {float(norm):.3g}"
        raise RunFailed(f"training diverged at step {done + 1:,}{later}: {figures}; {where}. {kept}. {advice}")


def _are_finite(trainer: pl.Trainer, module: TransformerModule) -> bool:
    """Whether all weights are finite, in all processes, which may have no row of a sharded weight."""
    shards = [weight.to_local() if hasattr(weight, "to_local") else weight for weight in module.parameters()]
    largest = get_total_norm([shard for shard in shards if shard.numel()], math.inf)
    return trainer.strategy.reduce_boolean_decision(bool(largest.isfinite()))


def replay(trainer: pl.Trainer, module: TransformerModule, done: int) -> tuple[float, str]:
    """Replay the step after the first `done` with the current weights, in all processes.

    Returns the loss of the first batch with a non-finite tensor, and a clause that names its origin, both of the first
    process that finds one.
    """
    names = {part: name for name, part in module.model.named_modules()}
    weights = (name for name, weight in module.model.named_parameters() if not bool(weight.isfinite().all()))
    found = [f"the weights {name} are not finite" for name in weights]
    loss, first = math.nan, done * trainer.accumulate_grad_batches

    def check(place: str, tensor: Any) -> None:
        if not bool(tensor.isfinite().all()):
            found.append(f"it first shows in the {place}")

    def forward(part: nn.Module, _inputs: Any, out: Any) -> None:
        place = f"output of {names[part] or 'the model'} ({type(part).__name__})"
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                check(place, tensor)
                if tensor.requires_grad:
                    tensor.register_hook(partial(check, f"backward, in the gradient of the {place}"))

    precision = trainer.precision_plugin.train_step_context()
    with register_module_forward_hook(forward), torch.compiler.set_stance("force_eager"), precision:
        batches = trainer.train_dataloader.step(first)  # type: ignore[union-attr]
        for number, batch in enumerate(batches, start=first):
            module.reseed(number)
            batch = trainer.strategy.batch_to_device(batch)
            total = module.summed_loss(batch)
            loss = float(total.detach() / count(batch.labels))
            if not math.isfinite(loss):
                found.append("all layers' outputs are finite, but the loss is not")
            # All processes stop at the same batch, and before a backward that brings NaN into the gradients of others.
            if trainer.strategy.reduce_boolean_decision(bool(found), all=False):
                break
            total.backward()
            for name, weight in module.model.named_parameters():
                if weight.grad is not None:
                    check(f"backward, in the gradient of {name}", weight.grad)
            if trainer.strategy.reduce_boolean_decision(bool(found), all=False):
                break
    where = [*found, "the replayed step is finite: the norm of its gradients overflows, or the hardware has failed"][0]
    if trainer.world_size == 1:
        return loss, where
    findings: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(findings, (loss, where, bool(found)))
    rank = next((rank for rank, (*_, shown) in enumerate(findings) if shown), 0)
    return findings[rank][0], f"{findings[rank][1]}, in process {rank}"
