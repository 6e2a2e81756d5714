"""The LightningModule: one training step, one validation, and what a checkpoint carries."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.amp import GradScaler
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from minitx.checkpoints import format as checkpoint
from minitx.config.schema import Config
from minitx.data.batch import Batch
from minitx.data.examples import Examples
from minitx.data.tasks import Task, hash_seed
from minitx.evaluation.metrics import Scores, score, text_scorer
from minitx.hardware.devices import widest_float
from minitx.inference.predictor import Predictor
from minitx.models.transformers import Transformer
from minitx.training.hooks import RunCallback
from minitx.training.losses import MOST_LOGITS, count, cross_entropy, piecewise_cross_entropy
from minitx.training.optim import build_optimizer, build_schedule, place_step_counters, regrouped, skips_on_device
from minitx.training.resume import begin_at, data_digest, validation_is_due
from minitx.training.sharding import gathered, shard, whole

SELECTION = "validation/selection"
"""What decides on best.ckpt, the larger the better; see TransformerModule.on_validation_epoch_end."""


class EveryStep:
    """Takes every optimiser step; FiniteSteps (training/resilience) leaves out those that are not finite."""

    def __init__(self) -> None:
        self.skip = False  # whether to pass over steps and count them
        self.skipped = torch.tensor(0)  # in the whole run

    def saw(self, losses: Tensor) -> None:
        """Another batch of the coming step; losses: how many of all processes' losses are not finite, []."""

    def before(self, optimizer: Optimizer, norm: Tensor, step: int, scaler: GradScaler | None) -> None:
        """Between the backward of a step and the optimiser; see FiniteSteps."""


class TransformerModule(pl.LightningModule):
    """Trains a model on a task.

    Args:
        model: what to train.
        task: where its examples come from.
        config: the resolved config, saved in every checkpoint.
    """

    def __init__(self, model: Transformer, task: Task, config: Config) -> None:
        super().__init__()
        self.model, self.task, self.config = model, task, config
        self.loss: Tensor | None = None  # of the latest training batch, for whoever reports it
        self.gradient_norm: Tensor | None = None  # over all weights, before clipping
        self.steps = EveryStep()
        self.validated: dict[str, float] = {}  # the latest validation's figures
        self._scores = Scores()
        self._gathered = ExitStack()
        self._began = time.perf_counter()
        self._validated_at = 0  # the step of the latest validation
        self._settings: list[dict[str, Any]] = []  # of the optimiser's groups, as the config has them

    def configure_callbacks(self) -> list[Callback]:
        """None; but it is asked for when all processes are started, which callbacks may want to know."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RunCallback):
                callback.on_launch()
        return []

    def configure_model(self) -> None:
        """Spread the weights over processes where the strategy asks for it; Lightning may ask more than once."""
        if self.device_mesh is not None and not isinstance(self.model, FSDPModule):
            shard(self.model, self.device_mesh)

    @property
    def seconds(self) -> float:
        """Since this module was made, and those of the runs before that were resumed, up to their last save."""
        return time.perf_counter() - self._began

    @cached_property
    def _data_digest(self) -> str:
        return data_digest(self.task)

    def on_train_start(self) -> None:
        """Let the config decide on how to go on, where a checkpoint has brought other settings of the optimiser."""
        optimizer, scheduler = self.trainer.optimizers[0], self.trainer.lr_scheduler_configs[0].scheduler
        assert isinstance(scheduler, LambdaLR)
        scheduler.base_lrs = [settings["initial_lr"] for settings in self._settings]
        for group, settings, ratio in zip(optimizer.param_groups, self._settings, scheduler.lr_lambdas, strict=True):
            group.update(settings, lr=settings["initial_lr"] * ratio(scheduler.last_epoch))
        place_step_counters(optimizer)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Lay a training batch where a GPU fetches it by itself: the next can be drawn during the step before."""
        if not isinstance(batch, Batch):
            return batch
        return batch.pin(self.device)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Draw dropout and positions as a function of (seed, batch, rank), so that a resumed run draws the same."""
        self.reseed(self.trainer.fit_loop.total_batch_idx)

    def reseed(self, number: int) -> None:
        """What is drawn at random in batch `number` is drawn next."""
        drawn = hash_seed(self.config.run.seed, number, self.global_rank)
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(drawn)  # a hundred times as fast as for every device that there may be
        else:
            torch.manual_seed(drawn)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """This batch's share in the mean loss over all labels of the optimiser step.

        Lightning divides by the number of batches, and the processes' gradients are averaged: to weigh each label
        alike, whatever batch and process it is in, both are made up for here.
        """
        loss = self.summed_loss(batch)
        labels = count(batch.labels)
        self.loss = loss.detach() / labels
        if batch.step_labels is not None:
            labels = batch.step_labels.clamp(min=1)
        unfinite = (~self.loss.isfinite()).to(labels.dtype)
        if self.trainer.world_size > 1:
            labels, unfinite = self.trainer.strategy.reduce(torch.stack((labels, unfinite)), reduce_op="sum").unbind()
        self.steps.saw(unfinite)
        return loss * (self.trainer.accumulate_grad_batches * self.trainer.world_size) / labels

    def summed_loss(self, batch: Batch) -> Tensor:
        """Cross-entropy summed over the labels; piece by piece where all logits together would be a burden."""
        smoothing = self.config.trainer.label_smoothing
        if batch.labels.numel() * self.model.head.out_features <= MOST_LOGITS:
            return cross_entropy(self.model(**batch.model_inputs()), batch.labels, smoothing)
        hidden = self.model(**batch.model_inputs(), head=False)
        return piecewise_cross_entropy(hidden, self.model.head, batch.labels, smoothing)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Behind the last step ask for a validation, which Lightning has wherever a run is told to stop."""
        if self.trainer.global_step == self.trainer.max_steps:
            self.trainer.should_stop = True

    def on_validation_start(self) -> None:
        """Bring spread weights together."""
        self._gathered.enter_context(gathered(self.model))

    def on_validation_end(self) -> None:
        """Let go of them again; callbacks, which come first, have looked inside."""
        self.let_go()

    def let_go(self) -> None:
        """Spread weights again that were brought together, if they still are."""
        self._gathered.close()

    def on_validation_epoch_start(self) -> None:
        """Begin to add up."""
        self._scores = Scores()

    def validation_step(self, examples: Examples, batch_idx: int) -> None:
        """Free-running exact match, and beside it the teacher-forced figures; texts are written at the end instead."""
        special, free = self.task.vocabulary.special, not self.task.metrics
        self._scores += score(self.model, examples, self.config.model.architecture, special, free)

    def on_validation_epoch_end(self) -> None:
        """Add up over processes, log the means, and choose.

        The best model is the one with the most exact matches and, among equals, the least loss; for running text the
        one with the least loss. A thousandth of a match outweighs any sensible loss. Where answers are judged as texts
        hardly any matches, and BLEU on the validation set, written greedily, takes the place of the matches: it is
        what such a model is measured by, and goes on rising when the loss has turned.
        """
        scores = self._scores
        if self.trainer.world_size > 1:
            sums = [scores.examples, scores.exact or 0, scores.tokens, scores.correct, scores.loss]
            mine = torch.tensor(sums, dtype=widest_float(self.device), device=self.device)
            total = self.trainer.strategy.reduce(mine, reduce_op="sum").tolist()
            examples, exact, tokens, correct = (int(value) for value in total[:4])
            scores = Scores(examples, None if scores.exact is None else exact, tokens, correct, total[4])
        self._validated_at = self.global_step
        self.validated = scores.means()
        if self.task.metrics:
            self.validated["bleu"] = self._bleu()
        figures = {f"validation/{name}": value for name, value in self.validated.items()}
        self.log_dict({**figures, "step": float(self.global_step)})  # Lightning would count one step less
        matches = self.validated["bleu"] / 100 if self.task.metrics else self.validated.get("exact_match", 0.0)
        selection = matches - 1e-4 * self.validated["loss"]
        self.log(SELECTION, selection, logger=False)

    def _bleu(self) -> float:
        """BLEU of the validation set, every process writing its share."""
        bleu = text_scorer("bleu")
        predictor = Predictor(self.model, self.task.vocabulary, self.config)
        sentences = self.task.sentences("validation")[self.global_rank :: self.trainer.world_size]
        texts = bleu.translated(predictor, [source for source, _ in sentences])
        counts = bleu.statistics(texts, [target for _, target in sentences], self.task.caseless)
        sums = torch.tensor(counts, device=self.device)
        if self.trainer.world_size > 1:
            sums = self.trainer.strategy.reduce(sums, reduce_op="sum")
        value: float = bleu.bleu(sums.tolist())
        return value

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm over all weights, and keep the norm for whoever reports it.

        Lightning's own way refuses fused AdamW in mixed precision.
        """
        scaler = self._scaler
        if scaler is not None and skips_on_device(optimizer):  # otherwise Lightning has unscaled them
            scaler.unscale_(optimizer)
        largest = gradient_clip_val or float("inf")
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        self.gradient_norm = whole(torch.nn.utils.clip_grad_norm_(weights, largest).detach())
        self.steps.before(optimizer, self.gradient_norm, self.trainer.global_step, scaler)

    @property
    def _scaler(self) -> GradScaler | None:
        """What scales gradients, as fp16 needs; None in any other precision."""
        return getattr(self.trainer.precision_plugin, "scaler", None)

    def configure_optimizers(self) -> Any:
        """AdamW, and a schedule counted in optimiser steps."""
        config = self.config.optimizer
        # Only on a CUDA device does the fused kernel leave out the step of a gradient that was scaled too large.
        optimizer = build_optimizer(self.model, config, fused=self._scaler is None or self.device.type == "cuda")
        schedule = build_schedule(optimizer, config.schedule, self.config.trainer.max_steps)
        self._settings = [
            {key: value for key, value in group.items() if key not in ("params", "lr")}
            for group in optimizer.param_groups
        ]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, contents: dict[str, Any]) -> None:
        """Make the file self-contained."""
        contents["minitx"] = checkpoint.header(self.config.to_dict(), self.task.vocabulary.to_dict())
        contents["seconds"] = self.seconds
        contents["data_digest"] = self._data_digest
        contents["validated"] = self._validated_at == self.global_step or not validation_is_due(self.trainer)
        contents["skipped_steps"] = int(self.steps.skipped)

    def on_load_checkpoint(self, contents: dict[str, Any]) -> None:
        """Go on counting seconds and batches, with the optimizer's groups as they are now."""
        self._began -= contents.get("seconds", 0.0)
        self.steps.skipped = torch.tensor(contents.get("skipped_steps", 0))
        begin_at(contents, self.config.trainer.accumulate_grad_batches)
        if "optimizer_states" in contents:  # not where the strategy has loaded them already
            contents["optimizer_states"] = [regrouped(saved, self.model) for saved in contents["optimizer_states"]]
