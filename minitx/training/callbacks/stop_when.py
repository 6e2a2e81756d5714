"""The end of training before max_steps: a figure of the validations is reached, or no longer improves."""

import math
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from minitx.config.errors import ConfigError, counted
from minitx.config.training_sections import StopConfig
from minitx.data.tasks import Task
from minitx.training.module import validation_is_due


def check_metric(config: StopConfig, task: Task) -> None:
    """Raise a ConfigError if the validations of a task do not have the metric, or if there is a limit and no metric."""
    answers = ["bleu"] if task.metrics else ["exact_match"] if task.kind == "pairs" else []
    metrics = [*answers, "token_accuracy", "loss"]
    if config.metric not in metrics and (config.metric or config.at_least is not None or config.at_most is not None):
        expected, got = f"{', '.join(metrics[:-1])} or {metrics[-1]}", config.metric or "null: a limit needs one"
        raise ConfigError(f"trainer.stop_when.metric must be {expected} for this task, got {got}")
    most = 100 if config.metric == "bleu" else 1
    if config.at_least is not None and config.at_least > most:
        expected = f"at most {most} for {config.metric}, got {config.at_least:g}"
        raise ConfigError(f"trainer.stop_when.at_least must be {expected}")


class StopWhen(Callback):
    """End training after `patience` validations in a row that reach the figure, or that do not improve the best one.

    Its last step is then the last of the run: it is saved, and the model is evaluated. A run that is resumed with the
    same settings of stop_when ends at once.
    """

    def __init__(self, config: StopConfig) -> None:
        self.config = config
        self.direction = -1.0 if config.metric == "loss" else 1.0
        self.limit = config.at_most if config.metric == "loss" else config.at_least
        self.best = -math.inf  # times direction
        self.row, self.first = 0, 0  # how many validations in a row; the step of the first one

    @property
    def state_key(self) -> str:
        """With the settings: a run that is resumed with others counts from zero."""
        return self._generate_state_key(metric=self.config.metric, limit=self.limit, patience=self.config.patience)

    @property
    def stopped(self) -> bool:
        return self.row >= self.config.patience

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """End a resumed run that has been stopped."""
        self._stop(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Count a scheduled validation, in every process, and end the run if it is the last of its row."""
        if not validation_is_due(trainer):
            return
        value = self.direction * module.validated[self.config.metric]
        counts = not value > self.best if self.limit is None else value >= self.direction * self.limit
        self.best = max(self.best, value)
        self.row = self.row + 1 if counts else 0
        if self.row == 1:
            self.first = trainer.global_step
        self._stop(trainer)

    def _stop(self, trainer: pl.Trainer) -> None:
        if self.stopped and trainer.global_step < trainer.max_steps:
            trainer.fit_loop.epoch_loop.max_steps = trainer.global_step  # the other callbacks save and log at the end

    def outcome(self) -> tuple[dict[str, Any], str]:
        """For results.json, and as a line: the step of the first validation in the row; empty unless it was stopped."""
        if not self.stopped:
            return {}, ""
        metric, times = self.config.metric, counted(self.config.patience, "validation")
        if self.limit is None:
            return {"no_improvement_from_step": self.first}, f"{metric} has not improved from step {self.first:,} on\n"
        reached = f"{metric} {'at most' if metric == 'loss' else 'at least'} {self.limit} in {times}"
        return {"solved_at_step": self.first}, f"solved at step {self.first:,}: {reached}\n"

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "row": self.row, "first": self.first}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.row, self.first = (state_dict[key] for key in ("best", "row", "first"))
