"""The LightningModule: training step, validation, and the contents of a checkpoint."""

import math
import time
from importlib import import_module
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback as Callback  # also for callbacks of other folders
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from minitx.checkpoints import format as checkpoint
from minitx.config.schema import Config
from minitx.data.batch import Batch
from minitx.data.examples import Examples
from minitx.data.tasks import Task, hash_seed
from minitx.evaluation.metrics import Scores, score
from minitx.hardware.devices import widest_float
from minitx.models.transformers import Transformer
from minitx.nn import kernels
from minitx.training.losses import count, summed_loss
from minitx.training.optim import build_optimizer, place_step_counters, schedule, skips_on_device
from minitx.training.start import data_digest, resume_loops


class EveryStep:
    """Takes every optimizer step. FiniteSteps (training/resilience) skips steps that are not finite."""

    skipped = torch.tensor(0)  # in the whole run

    def add_losses(self, nonfinite: Tensor) -> None:
        """Record one batch of the coming step by the number of non-finite losses over all processes: []."""

    def before_step(self, optimizer: Optimizer, norm: Tensor, step: int, scaler: GradScaler | None) -> None:
        """Called between the backward of a step, numbered from 0, and the optimizer. The norm [] is the gradient's over
        all weights and processes, unscaled if there is a scaler."""


def validation_is_due(trainer: pl.Trainer) -> bool:
    """Whether a validation is scheduled after the latest step."""
    step = trainer.global_step
    return step == trainer.max_steps or step * trainer.accumulate_grad_batches % int(trainer.val_check_interval) == 0


class TransformerModule(pl.LightningModule):
    """Training of a model on a task. The resolved config is saved in every checkpoint."""

    def __init__(self, model: Transformer, task: Task, config: Config) -> None:
        super().__init__()
        self.model, self.task, self.config = model, task, config
        self.step_loss = self.summed_loss  # of training steps; CUDA graphs replace it (training/choices)
        self.loss: Tensor | None = None  # mean over the labels of the latest step, in all processes
        self.predicted: Tensor | int = 0  # labels of the steps since ProgressLine set it to 0
        self.gradient_norm: Tensor | None = None  # over all weights, before clipping
        self.learning_rate = 0.0  # of the latest step; the optimizer has that of the next one
        self.steps = EveryStep()
        self.validated: dict[str, float] = {}  # figures of the latest validation
        self.selection = -math.inf  # of the latest validation: selects best.ckpt, larger is better
        self._scores, self._start_time = Scores(), time.perf_counter()
        self._data_digest, self._validated_step = data_digest(task), 0
        self._group_settings: list[dict[str, Any]] = []  # of the optimizer's groups, from the config

    def configure_model(self) -> None:
        """Shard the weights, if the strategy does so."""
        if shard := getattr(self.trainer.strategy, "shard", None):
            shard(self.model)

    @property
    def seconds(self) -> float:
        """Duration of the run, including earlier processes up to their last save."""
        return time.perf_counter() - self._start_time

    def on_train_start(self) -> None:
        """Replace the optimizer settings of a checkpoint by those of the config, at the step of the checkpoint."""
        optimizer, scheduler = self.trainer.optimizers[0], self.trainer.lr_scheduler_configs[0].scheduler
        assert isinstance(scheduler, LambdaLR)
        scheduler.last_epoch = self.trainer.global_step
        scheduler.base_lrs = [settings["initial_lr"] for settings in self._group_settings]
        for group, settings in zip(optimizer.param_groups, self._group_settings, strict=True):
            group.update(settings, lr=settings["initial_lr"] * scheduler.lr_lambdas[0](scheduler.last_epoch))
        place_step_counters(optimizer)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed dropout and position ids by (seed, batch, rank), so that a resumed run replays them."""
        self.reseed(self.trainer.fit_loop.total_batch_idx)

    def reseed(self, number: int) -> None:
        """Seed the random generators for batch `number`."""
        seed = hash_seed(self.config.run.seed, number, self.global_rank)
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # a hundred times as fast as seeding every device
        else:
            torch.manual_seed(seed)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The batch's share of the mean loss over all labels of the optimizer step.

        Lightning divides by the number of batches and averages gradients over processes. The factors below cancel
        both, so that every label has the same weight, whatever its batch and process.
        """
        loss = self.step_loss(batch)
        labels = count(batch.labels) if batch.step_labels is None else batch.step_labels.clamp(min=1)
        total, nonfinite = loss.detach(), ~loss.isfinite()
        if self.trainer.world_size > 1:
            sums = self.trainer.strategy.reduce(torch.stack((labels, total, nonfinite)), reduce_op="sum")
            labels, total, nonfinite = sums.unbind()
        self.steps.add_losses(nonfinite)
        if self.loss is None or self.trainer.fit_loop.total_batch_idx % self.trainer.accumulate_grad_batches == 0:
            self.loss, self.predicted = total / labels, self.predicted + labels
        else:
            self.loss = self.loss + total / labels
        return loss * (self.trainer.accumulate_grad_batches * self.trainer.world_size) / labels

    def summed_loss(self, batch: Batch) -> Tensor:
        """The loss of a batch, summed over its labels."""
        return summed_loss(self.model, batch, self.config.trainer.label_smoothing)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Stop after the last step: Lightning validates whenever a run is stopped."""
        if self.trainer.global_step == self.trainer.max_steps:
            self.trainer.should_stop = True

    def validation_step(self, examples: Examples, batch_idx: int) -> None:
        """Add free-running and teacher-forced scores; outputs scored as texts are generated at the end instead."""
        special, free = self.task.vocabulary.special, not self.task.metrics
        self._scores += score(self.model, examples, self.config.model.architecture, special, free)

    def on_validation_epoch_end(self) -> None:
        """Sum over processes, log the means, and compute the figure that selects best.ckpt.

        The best model has the most exact matches and, among equals, the lowest loss: one match in a thousand weighs as
        much as ten nats of loss. Running text has the loss alone. If answers are scored as texts, hardly any output
        matches exactly, so greedy BLEU on the validation set replaces the matches; it may rise even if the loss rises.
        """
        scores, self._scores = self._scores, Scores()
        if self.trainer.world_size > 1:
            sums = [scores.examples, scores.exact or 0, scores.tokens, scores.correct, scores.loss]
            local = torch.tensor(sums, dtype=widest_float(self.device), device=self.device)
            examples, exact, *others = self.trainer.strategy.reduce(local, reduce_op="sum").tolist()
            scores = Scores(examples, None if scores.exact is None else exact, *others)
        self._validated_step = self.global_step
        self.validated = scores.means()
        if self.task.metrics:
            bleu = import_module("minitx.evaluation.bleu")  # not in the core: imported for tasks with metrics
            diverged = math.isnan(self.validated["loss"])  # no text is generated from NaN
            self.validated["bleu"] = 0.0 if diverged else bleu.validation_bleu(self)
        figures = {f"validation/{name}": value for name, value in self.validated.items()}
        self.log_dict({**figures, "step": float(self.global_step)})  # Lightning's own step is one less
        matches = self.validated["bleu"] / 100 if self.task.metrics else self.validated.get("exact_match", 0.0)
        self.selection = matches - 1e-4 * self.validated["loss"]  # not logged, which would round it to fp32

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip by the norm over all weights, and record it. Lightning's own refuses fused AdamW in mixed precision."""
        if self._scaler is not None and skips_on_device(optimizer):  # otherwise Lightning has unscaled them
            self._scaler.unscale_(optimizer)
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(weights, gradient_clip_val or float("inf"))
        self.gradient_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # sharded over processes
        self.learning_rate = optimizer.param_groups[0]["lr"]
        self.steps.before_step(optimizer, self.gradient_norm, self.trainer.global_step, self._scaler)

    @property
    def _scaler(self) -> GradScaler | None:
        """The gradient scaler of fp16."""
        return getattr(self.trainer.precision_plugin, "scaler", None)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Take a step and free its gradients, whose memory the next forward reuses."""
        super().optimizer_step(*args, **kwargs)
        self.trainer.optimizers[0].zero_grad(set_to_none=True)

    def optimizer_zero_grad(self, *args: Any) -> None:
        """Keep the gradients between forward and backward: there are none, or those of accumulated batches."""

    def configure_optimizers(self) -> Any:
        config = self.config.optimizer
        # Only on CUDA does the fused kernel skip the step of a gradient that overflowed by its scale.
        optimizer = build_optimizer(self.model, config, fused=self._scaler is None or self.device.type == "cuda")
        scheduler = LambdaLR(optimizer, schedule(config.schedule, self.config.trainer.max_steps))
        self._group_settings = [{key: group[key] for key in {*group} - {"params"}} for group in optimizer.param_groups]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, contents: dict[str, Any]) -> None:
        """Add config and tokenizer, which make the file self-contained, and the state that resuming needs."""
        weights = checkpoint.weights(contents)
        contents |= checkpoint.contents_of(self.config.to_dict(), self.task.vocabulary.to_dict(), weights)
        contents["precision"], contents["attention_kernel"] = self.trainer.precision, kernels.training_kernel
        contents["data_digest"], contents["sampling"] = self._data_digest, self.task.sampling
        contents["validated"] = self._validated_step == self.global_step or not validation_is_due(self.trainer)
        contents["seconds"], contents["skipped_steps"] = self.seconds, int(self.steps.skipped)

    def on_load_checkpoint(self, contents: dict[str, Any]) -> None:
        self._start_time -= contents.get("seconds", 0.0)
        self.steps.skipped = torch.tensor(contents.get("skipped_steps", 0))
        self._validated_step = contents["global_step"] if contents.get("validated", True) else 0
        resume_loops(contents, self.config.trainer.accumulate_grad_batches)
