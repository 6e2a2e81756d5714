"""A whole run, from a config to a trained, tested checkpoint in its folder."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import torch
import yaml

from minitx.config import Config
from minitx.data import framing
from minitx.data.examples import Examples
from minitx.data.loader import FixedBatches, TrainingBatches
from minitx.data.tasks import TASKS, Task
from minitx.data.tokenizers import Tokenizer
from minitx.evaluation import BATCH
from minitx.hardware import training_device, widest_float
from minitx.models import Transformer, build_model, max_positions
from minitx.nn import Stack
from minitx.options import build, resolve
from minitx.predictor import Predictor, load
from minitx.report import evaluation_report, table
from minitx.size import check_batch, check_memory
from minitx.training import initial
from minitx.training.folder import new_folder, old_folder
from minitx.training.optim import build_optimizer, schedule
from minitx.training.resuming import Resumed, as_begun, changed, data_digest, finished, going_on, resumed

MOST_STEPS = 2**40
"""More than any run takes; beyond 2^53 a step would no longer be told from the next."""


def prepare(
    config: Config, begun: Predictor | None = None, tokenizer: Tokenizer | None = None
) -> tuple[Config, Task, Transformer]:
    """Everything that can be wrong with a config, found before any work: the resolved config, its task and its model.

    Args:
        config: the experiment.
        begun: what run.init_from names, where it has been loaded already.
        tokenizer: of a run that goes on, for tasks that take one; with it, run.init_from is left alone.

    Raises:
        ValueError: with the key to change.
    """
    if config.run.init_from and begun is None and tokenizer is None:
        begun = initial.source(config.run.init_from)
    trainer = config.trainer
    for name in (
        "max_steps",
        "val_every_n_steps",
        "save_every_n_steps",
        "accumulate_grad_batches",
        "num_nodes",
    ):
        if not 1 <= getattr(trainer, name) <= MOST_STEPS:
            raise ValueError(f"trainer.{name} must lie between 1 and {MOST_STEPS:,}, got {getattr(trainer, name)}")
    if not -(2**63) <= config.run.seed < 2**63:
        raise ValueError(f"run.seed must be a number of 64 bits, got {config.run.seed}")
    if trainer.strategy == "fsdp2" and config.optimizer.name == "muon":
        raise ValueError("trainer.strategy fsdp2 spreads AdamW's states only: optimizer.name must be adamw, got muon")
    if trainer.profile < 0:
        raise ValueError(f"trainer.profile must be a number of steps, or 0, got {trainer.profile}")
    if not 0.0 <= trainer.label_smoothing < 1.0:
        raise ValueError(f"trainer.label_smoothing must lie in [0, 1), got {trainer.label_smoothing}")
    if trainer.keep_every_n_steps < 0:
        raise ValueError(
            f"trainer.keep_every_n_steps must be a number of steps, or 0, got {trainer.keep_every_n_steps}"
        )
    if trainer.compile_mode != "default" and trainer.compile is not True:
        told = "auto" if trainer.compile else "false"
        raise ValueError(f"trainer.compile_mode {trainer.compile_mode} needs trainer.compile true, got {told}")
    if trainer.compile_mode != "default" and trainer.accumulate_grad_batches > 1:
        # CUDA graphs overwrite the gradients of the batch before (pytorch issues 169545 and 96693).
        raise ValueError(
            f"trainer.accumulate_grad_batches must be 1 with trainer.compile_mode {trainer.compile_mode}, "
            f"got {trainer.accumulate_grad_batches}"
        )
    device = training_device(trainer.accelerator)
    if trainer.precision == "64-true" and widest_float(device) != torch.float64:
        raise ValueError(
            f"trainer.precision 64-true needs trainer.accelerator cpu here, got {device}, which has no float64"
        )
    if config.log.every_n_steps < 1:
        raise ValueError(f"log.every_n_steps must be at least 1, got {config.log.every_n_steps}")
    config = dataclasses.replace(config, data=resolve(TASKS, config.data, "data"))
    if begun is not None:
        config, tokenizer = initial.fitted(config, begun), begun.tokenizer
    task = build(TASKS, config.data, "data")
    check_batch(task)
    if tokenizer is not None and task.takes(tokenizer):
        task.vocabulary = tokenizer
    framing.check(config.model.architecture, task.kind, task.longest, task.aligned)
    if config.model.architecture == "decoder_only" and task.kind == "pairs" and task.vocabulary.special.sep < 0:
        raise ValueError(
            "data.name: a decoder alone needs a token <sep> between question and answer, which the tokenizer of "
            f"{config.run.init_from} does not have; train it on running text (--data.name text)"
        )
    if config.model.prefix_lm and task.kind == "stream":
        raise ValueError("model.prefix_lm needs questions and answers; running text has no question")
    model_config = initial.resolved_model(config.model)
    position_ids = model_config.position_ids
    if position_ids.get("after") == ():
        position_ids["after"] = task.boundaries
    if model_config.vocab_size is None:
        model_config = dataclasses.replace(model_config, vocab_size=task.vocabulary.vocab_size)
    assert model_config.vocab_size is not None
    if model_config.vocab_size < task.vocabulary.vocab_size:
        raise ValueError(
            f"model.vocab_size must be at least the tokenizer's {task.vocabulary.vocab_size}, "
            f"got {model_config.vocab_size}"
        )
    config = dataclasses.replace(config, model=model_config)
    check_memory(model_config)
    if begun is not None:
        initial.check(model_config, begun)
    torch.manual_seed(config.run.seed)
    model = build_model(model_config)
    build_optimizer(model, config.optimizer)
    schedule(config.optimizer.schedule, trainer.max_steps)
    limit, needed = max_positions(model), framing.positions(model_config.architecture, task.reach)
    if limit is not None and needed > limit:
        if position_ids["name"] == "consecutive":
            raise ValueError(
                f"model.position.max_len must be at least {needed} for the longest sequence of this task, got {limit}"
            )
        raise ValueError(
            f"model.position_ids.name {position_ids['name']} with its options, and model.position.max_len if there is "
            f"one, must reach {needed} tokens, the longest sequence of this task; they reach {limit}"
        )
    if begun is not None:
        model.load_state_dict(begun.model.state_dict())
    return config, task, model


def train(config: Config, resume: bool = False) -> dict[str, Any]:
    """Train, keep the best model, and test it on examples that neither training nor choosing has seen.

    Args:
        config: the experiment.
        resume: go on with the newest run of this name instead of starting another.

    Returns:
        What is written to results.json in the run's folder: the figures on the held-out set, steps and seconds.

    Raises:
        ValueError: a config that cannot be run, or not gone on with, before any work.
        RunFailed: it diverged, or its outcome could not be written.
        SystemExit: 128 + n after signal n, once last.ckpt is written.
    """
    before = resumed(config) if resume else None
    if before is not None:
        config = as_begun(config, before)
    begun = initial.source(config.run.init_from) if config.run.init_from and not before else None
    config, task, model = prepare(config, begun, before.tokenizer if before else None)
    data_digest(task)  # a corpus that is too short, a task without examples: now rather than later
    validation = task.examples("validation", task.validation_size)
    changes = changed(before, config, task) if before else {}
    if before and before.step == config.trainer.max_steps and (done := before.file.with_name("results.json")).exists():
        return finished(before, changes, done)
    notes = going_on(before, changes) if before else initial.notes(config, task, begun) if begun else []
    with old_folder(before.file.parent) if before else new_folder(config) as folder:
        return _train(config, task, model, validation, folder, before, [*notes, *task.notes])


def _train(
    config: Config,
    task: Task,
    model: Transformer,
    validation: Examples,
    folder: Path,
    before: Resumed | None,
    notes: list[str],
) -> dict[str, Any]:
    """Train what has been prepared, in a folder that is there; see train."""
    from minitx.training.allocation import kept_memory
    from minitx.training.callbacks import LookInside, RunLogger
    from minitx.training.checkpoint import AtomicCheckpointIO, checkpoint_callbacks
    from minitx.training.compiling import CompileWhereItPays
    from minitx.training.disk import Disk, say
    from minitx.training.divergence import StopOnDivergence
    from minitx.training.embeddings import LogEmbeddings
    from minitx.training.module import TransformerModule
    from minitx.training.precision import TRUE_DTYPES, resolve_precision
    from minitx.training.profile import ProfileSteps
    from minitx.training.progress import ProgressLine
    from minitx.training.sharding import ShardedStrategy
    from minitx.training.stopping import StopOnSignal

    _quiet()
    settings = config.trainer
    precision = resolve_precision(settings.precision, settings.accelerator)
    disk = Disk(folder)
    stop = StopOnSignal(disk)
    trainer = _trainer(
        max_steps=settings.max_steps,
        max_epochs=-1,
        val_check_interval=min(settings.val_every_n_steps, settings.max_steps) * settings.accumulate_grad_batches,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        precision=precision,
        accumulate_grad_batches=settings.accumulate_grad_batches,
        gradient_clip_val=settings.gradient_clip_val or None,
        accelerator=settings.accelerator,
        devices=settings.devices,
        strategy=ShardedStrategy() if settings.strategy == "fsdp2" else settings.strategy,
        num_nodes=settings.num_nodes,
        # What a killed process wrote behind its last save is done once more.
        logger=RunLogger(disk, purge_step=before.step + 1 if before else None),
        callbacks=[
            StopOnDivergence(config, disk),
            ProgressLine(config.log.every_n_steps),
            LookInside(config.log.attention),
            LogEmbeddings(config.log.embeddings),
            *([ProfileSteps(settings.profile)] if settings.profile else []),
            *([CompileWhereItPays()] if settings.compile == "auto" and not settings.profile else []),
            stop,
            *checkpoint_callbacks(disk, settings),
        ],
        plugins=[AtomicCheckpointIO(disk)],
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    if trainer.is_global_zero:
        disk.keep("config.yaml", yaml.safe_dump(config.to_dict(), sort_keys=False).encode())
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"{folder}: {parameters:,} parameters, {precision}, {trainer.strategy.root_device.type}", flush=True)
        for note in notes:
            print(note, flush=True)
    for part in model.modules():
        if isinstance(part, Stack):
            part.recompute = settings.recompute_activations
    if settings.compile is True:
        model.compile(mode=settings.compile_mode)
    # Lightning would convert the weights after it has loaded a checkpoint's into them, and lose digits of fp64.
    module = TransformerModule(model.to(TRUE_DTYPES.get(precision)), task, config)
    accumulate = settings.accumulate_grad_batches
    batches = TrainingBatches(
        task,
        config.model.architecture,
        config.run.seed,
        trainer.global_rank,
        first=lambda: trainer.global_step * accumulate,
        total=settings.max_steps * accumulate,
        accumulate=accumulate,
    )
    with stop.listening(trainer), kept_memory():
        trainer.fit(
            module,
            batches,
            FixedBatches(validation, BATCH, trainer.global_rank, trainer.world_size),
            ckpt_path=before.file if before else None,
        )
        seconds = module.seconds
        stop.trained()
        results: dict[str, Any] = {"steps": trainer.global_step, "seconds": round(seconds, 2), "precision": precision}
        if config.run.init_from:
            results["init_from"] = config.run.init_from
        if settings.skip_nonfinite_steps:
            results["skipped_steps"] = int(module.steps.skipped)
        if trainer.is_global_zero:
            disk.check()
            predictor = load(folder)
            predictor.task = task  # the corpus is open already
            report = evaluation_report(predictor)
            results |= report
            skipped = f", {results['skipped_steps']:,} steps skipped" if results.get("skipped_steps") else ""
            say(f"{folder}: trained in {seconds:.1f} s{skipped}\n{table(report)}")
            trainer.logger.finish(config, results)
            disk.keep_result("results.json", f"{json.dumps(results, indent=2)}\n".encode())
    return results


def _trainer(**settings: Any) -> Any:
    """Lightning's Trainer, its complaints about a machine that is not as asked for told as ours.

    Raises:
        ValueError: no such device, or as many processes launched (torchrun, SLURM) as the config does not ask for.
    """
    import lightning.pytorch as pl
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    try:
        trainer = pl.Trainer(**settings)
    except (MisconfigurationException, ValueError) as error:
        raise ValueError(f"trainer: {' '.join(str(error).split())}") from None
    launched = os.environ.get("WORLD_SIZE")  # set by torchrun and its like; without one, Lightning starts the others
    if launched and int(launched) != trainer.world_size:
        asked = f"trainer.devices and trainer.num_nodes ask for {trainer.world_size}"
        raise ValueError(f"{launched} processes were launched, but {asked}")
    return trainer


def _quiet() -> None:
    """Lightning says a good deal that our own lines say already, or that does not hold for batches drawn by number."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*resuming from a checkpoint that ended before the epoch ended.*",
        ".*callbacks used to create the checkpoint need to be provided.*",  # other settings, and so other state
        ".*It is recommended to use .self.log.*sync_dist.*",  # the figures are added up before they are logged
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*smaller than the logging interval.*",
    ):
        warnings.filterwarnings("ignore", message)
