"""A whole run, from a config to a trained, tested checkpoint in its folder."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import yaml

from minitx import checkpoint
from minitx.config import Config
from minitx.data import framing
from minitx.data.loader import FixedBatches, TrainingBatches
from minitx.data.tasks import TASKS, Task, Text
from minitx.evaluation import BATCH, evaluate
from minitx.models import Transformer, build_model, max_positions
from minitx.nn import POSITIONS
from minitx.options import build, config_from_dict, resolve
from minitx.predictor import load


def prepare(config: Config) -> tuple[Config, Task, Transformer]:
    """Everything that can be wrong with a config, found before any work: the resolved config, its task and its model.

    Raises:
        ValueError: with the key to change.
    """
    trainer = config.trainer
    for name in (
        "max_steps",
        "val_every_n_steps",
        "save_every_n_steps",
        "accumulate_grad_batches",
        "num_nodes",
    ):
        if getattr(trainer, name) < 1:
            raise ValueError(f"trainer.{name} must be at least 1, got {getattr(trainer, name)}")
    if not 0.0 <= trainer.label_smoothing < 1.0:
        raise ValueError(f"trainer.label_smoothing must lie in [0, 1), got {trainer.label_smoothing}")
    if config.log.every_n_steps < 1:
        raise ValueError(f"log.every_n_steps must be at least 1, got {config.log.every_n_steps}")
    data = resolve(TASKS, config.data, "data")
    task = build(TASKS, data, "data")
    framing.check(config.model.architecture, isinstance(task, Text), task.longest)
    context = ("d_model", "n_heads", "d_head", "causal")
    model_config = dataclasses.replace(
        config.model,
        position=resolve(POSITIONS, config.model.position, "model.position", context),
        vocab_size=task.vocabulary.vocab_size if config.model.vocab_size is None else config.model.vocab_size,
    )
    if model_config.vocab_size is not None and model_config.vocab_size < task.vocabulary.vocab_size:
        raise ValueError(
            f"model.vocab_size must be at least the tokenizer's {task.vocabulary.vocab_size}, "
            f"got {model_config.vocab_size}"
        )
    config = dataclasses.replace(config, data=data, model=model_config)
    torch.manual_seed(config.run.seed)
    model = build_model(model_config)
    limit, needed = max_positions(model), framing.positions(model_config.architecture, task.longest)
    if limit is not None and needed > limit:
        raise ValueError(
            f"model.position.max_len must be at least {needed} for the longest sequence of this task, got {limit}"
        )
    return config, task, model


def train(config: Config, resume: bool = False) -> dict[str, Any]:
    """Train, keep the best model, and test it on examples that neither training nor choosing has seen.

    Args:
        config: the experiment.
        resume: go on with the newest run of this name instead of starting another.

    Returns:
        What is written to results.json in the run's folder: the figures on the held-out set, steps and seconds.

    Raises:
        ValueError: a config that cannot be run, before any work.
        SystemExit: 128 + n after signal n, once last.ckpt is written.
    """
    config, task, model = prepare(config)
    task.batch(torch.Generator(), 1)  # a corpus that is too short, a task without examples: now rather than later
    validation = task.examples("validation", task.validation_size)
    folder, resumed = _folder(config, resume)

    import lightning.pytorch as pl

    from minitx.training.callbacks import LookInside, RunLogger, StopOnSignal
    from minitx.training.checkpoint import AtomicCheckpointIO, checkpoint_callbacks
    from minitx.training.module import TransformerModule
    from minitx.training.precision import resolve_precision
    from minitx.training.progress import ProgressLine

    _quiet()
    settings = config.trainer
    precision = resolve_precision(settings.precision, settings.accelerator)
    stop = StopOnSignal(str(folder / "last.ckpt"))
    trainer = pl.Trainer(
        max_steps=settings.max_steps,
        max_epochs=-1,
        val_check_interval=min(settings.val_every_n_steps, settings.max_steps) * settings.accumulate_grad_batches,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        precision=precision,  # type: ignore[arg-type]
        accumulate_grad_batches=settings.accumulate_grad_batches,
        gradient_clip_val=settings.gradient_clip_val or None,
        accelerator=settings.accelerator,
        devices=settings.devices,
        strategy=settings.strategy,
        num_nodes=settings.num_nodes,
        logger=RunLogger(folder.parent, name="", version=folder.name, default_hp_metric=False),
        callbacks=[
            ProgressLine(config.log.every_n_steps),
            *checkpoint_callbacks(folder, min(settings.save_every_n_steps, settings.max_steps)),
            LookInside(config.log.attention),
            stop,
        ],
        plugins=[AtomicCheckpointIO()],
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != trainer.world_size:
        raise ValueError(
            f"{launched} processes were launched, but trainer.devices and trainer.num_nodes ask for {trainer.world_size}"
        )
    if trainer.is_global_zero:
        (folder / "config.yaml").write_text(yaml.safe_dump(config.to_dict(), sort_keys=False))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(
            f"{folder}: {parameters:,} parameters, {precision}, {trainer.accelerator.__class__.__name__}",
            flush=True,
        )
    module = TransformerModule(model, task, config)
    accumulate = settings.accumulate_grad_batches
    batches = TrainingBatches(
        task,
        config.model.architecture,
        config.run.seed,
        trainer.global_rank,
        first=lambda: trainer.global_step * accumulate,
        total=settings.max_steps * accumulate,
    )
    began = time.perf_counter()
    trainer.fit(
        module,
        batches,
        FixedBatches(validation, BATCH, trainer.global_rank, trainer.world_size),
        ckpt_path=resumed,
    )
    seconds = time.perf_counter() - began
    if stop.received is not None:
        print(f"stopped at step {trainer.global_step:,}; go on with --resume", flush=True)
        raise SystemExit(128 + stop.received)
    results: dict[str, Any] = {
        "steps": trainer.global_step,
        "seconds": round(seconds, 2),
        "precision": precision,
    }
    if trainer.is_global_zero:
        results |= test(folder, task)
        print(summary(config.run.name, results), flush=True)
        (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
        for name, value in results["figures"].items():
            trainer.logger.experiment.add_scalar(f"{results['split']}/{name}", value, trainer.global_step)  # type: ignore[union-attr]
        trainer.logger.finalize("success")  # type: ignore[union-attr]
    return results


def test(folder: Path, task: Task) -> dict[str, Any]:
    """Measure best.ckpt on the test set, or on the whole validation text of a corpus without one; say it and return it."""
    split = "validation" if isinstance(task, Text) and not task.test_share else "test"
    predictor = load(folder)
    examples = task.examples(split)  # type: ignore[arg-type]
    scores = evaluate(predictor.model, examples, predictor.architecture, predictor.tokenizer.special)
    return {"split": split, "examples": scores.examples, "figures": scores.means()}


def summary(name: str, results: dict[str, Any]) -> str:
    """The figures of a run in a sentence."""
    figures = results["figures"]
    parts = [
        f"loss {figures['loss']:.4f}",
        f"teacher-forced token accuracy {100 * figures['token_accuracy']:.2f} %",
    ]
    if "exact_match" in figures:
        parts.insert(0, f"exact match {100 * figures['exact_match']:.2f} % (free-running, <eos> included)")
    if "bits_per_token" in figures:
        parts.append(f"{figures['bits_per_token']:.4f} bits per token")
    unit = "pieces of text" if "bits_per_token" in figures else "examples"
    return f"{name}: {', '.join(parts)}; {results['examples']:,} {unit} held out for {results['split']}; trained in {results['seconds']:.1f} s"


def _folder(config: Config, resume: bool) -> tuple[Path, Path | None]:
    """The run's folder runs/NAME/vN, made now; and the checkpoint to go on from."""
    if not re.fullmatch(r"[\w.+-]+", config.run.name) or config.run.name in (".", ".."):
        raise ValueError(f"run.name must be a plain folder name, got {config.run.name!r}")
    root = Path(config.run.folder).expanduser() / config.run.name
    existing = checkpoint.versions(root)
    if resume:
        return _resumable(config, existing, root)
    number = int(existing[-1].name[1:]) + 1 if existing else 0
    folder = root / f"v{number}"
    if int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))):
        return folder, None  # the first process makes it, and tells Lightning in the others
    try:
        folder.mkdir(parents=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"run.folder: {folder} cannot be written ({error.strerror})") from None
    return folder, None


def _resumable(config: Config, existing: list[Path], root: Path) -> tuple[Path, Path]:
    """The newest version that has a last.ckpt, if it is of the same experiment."""
    for folder in reversed(existing):
        if (folder / "last.ckpt").is_file():
            before = config_from_dict(checkpoint.read(folder / "last.ckpt")["minitx"]["config"])
            for section in ("model", "data"):
                if getattr(before, section) != getattr(config, section):
                    raise ValueError(f"--resume: {folder} was trained with another {section} section; start a new run")
            return folder, folder / "last.ckpt"
    raise ValueError(f"--resume: there is no {root}/vN/last.ckpt to go on from")


def _quiet() -> None:
    """Lightning says a good deal that our own lines say already, or that does not hold for batches drawn by number."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*resuming from a checkpoint that ended before the epoch ended.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*smaller than the logging interval.*",
    ):
        warnings.filterwarnings("ignore", message)
