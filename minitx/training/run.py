"""A whole run: from a resolved config to a trained and evaluated checkpoint in its folder."""

import json
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import yaml

from minitx.config.errors import ConfigError, RunFailed
from minitx.config.schema import Config
from minitx.data.examples import Examples
from minitx.data.loader import TrainingBatches, fixed_batches
from minitx.evaluation.metrics import EXAMPLES_AT_ONCE, evaluate
from minitx.hardware.devices import TRUE_DTYPES, resolve_precision, training_device
from minitx.inference.predictor import Predictor, load
from minitx.nn import Stack
from minitx.training.folder import RunFiles, is_first_process, new_folder, print_line, refuse_unwritable
from minitx.training.resolve import ResolvedRun
from minitx.training.start import Start, data_digest


class RunExtras:
    """Parts of a run that a subclass may replace; those of this class only log the losses."""

    files: type[RunFiles] = RunFiles
    dumper: type[yaml.SafeDumper] = yaml.SafeDumper  # of config.yaml

    def folder(self, config: Config, start: Start | None) -> AbstractContextManager[Path]:
        """Return the folder of a new run, or of the one to resume, in a context around the run."""
        return nullcontext(new_folder(config) if start is None else start.file.parent)

    def loggers(self, config: Config, files: RunFiles, purge_step: int | None) -> list[Any]:
        """Create Lightning's loggers; of a resumed run, earlier events from purge_step on are hidden."""
        from lightning.pytorch.loggers import TensorBoardLogger

        return [TensorBoardLogger(files.folder, "", "", default_hp_metric=False, purge_step=purge_step)]

    def precision(self, run: ResolvedRun) -> tuple[str, str]:
        """Resolve trainer.precision; also the reason for the choice, for the first line of the run."""
        return resolve_precision(run.config.trainer.precision, run.config.trainer.accelerator), ""

    def notes(self, run: ResolvedRun) -> list[str]:
        """Lines to print before the run."""
        return run.task.notes

    def callbacks(self, config: Config, files: RunFiles) -> list[Any]:
        """Create Lightning callbacks, in the order of their calls."""
        from minitx.training.progress import ProgressLine

        return [ProgressLine(config.log.every_n_steps)]

    def around(self, trainer: Any) -> AbstractContextManager[None]:
        """Return a context for training and evaluation."""
        return nullcontext()

    def report(self, predictor: Predictor) -> tuple[dict[str, Any], str]:
        """Evaluate the trained model on the held-out split: figures for results.json, and the same as text."""
        task = predictor.task
        examples = task.examples(task.final_split)
        scores = evaluate(predictor.model, examples, predictor.architecture, predictor.tokenizer.special)
        figures = {"split": task.final_split, "examples": scores.examples, **scores.means()}
        return figures, ", ".join(f"{name} {value:.4f}" for name, value in scores.means().items())

    def finish(self, loggers: list[Any], config: Config, results: dict[str, Any]) -> None:
        """Write the results of the run into its log."""


def train(run: ResolvedRun, extras: RunExtras | None = None) -> dict[str, Any]:
    """Train, keep the best model, and evaluate it on the task's final split: test, or validation if there is none.

    `extras` are callbacks and the like; minitx.train has all of them. Returns the contents of results.json: figures on
    the held-out split, steps and seconds.

    Raises:
        ConfigError: the run cannot be trained; raised before training.
        RunFailed: training diverged, or its outcome could not be written.
        SystemExit: 128 + n after signal n, once last.ckpt is written; KeyboardInterrupt after Ctrl-C.
    """
    extras = extras or RunExtras()
    data_digest(run.task)  # fails for a corpus that is too short or a split without examples, before the folder exists
    run.task.examples(run.task.final_split, 1)
    validation = run.task.examples("validation", run.task.validation_size)
    start = run.start if run.start is not None and run.start.resumes else None
    if start is not None and (figures := start.finished(run.config)) is not None:
        return figures
    with extras.folder(run.config, start) as folder:
        if start is not None and start.file.stat().st_mtime_ns != start.written_ns:
            raise ConfigError(f"--resume: another process has just trained in {folder}: repeat the command")
        return _train(run, start, validation, extras.files(folder), extras)


def _train(
    run: ResolvedRun, start: Start | None, validation: Examples, files: RunFiles, extras: RunExtras
) -> dict[str, Any]:
    """Train in an existing folder; `start` is the checkpoint of a run to resume."""
    config, task, model, settings = run.config, run.task, run.model, run.config.trainer
    precision, reason = extras.precision(run)
    if is_first_process():  # before Lightning is imported, which takes seconds
        parameters = sum(parameter.numel() for parameter in model.parameters())
        numerics = f"{precision}{reason}, {training_device(settings.accelerator)}"
        print_line("\n".join([f"{files.folder}: {parameters:,} parameters, {numerics}", *extras.notes(run)]))
    from minitx.training.checkpointing import AtomicCheckpointIO, SaveCheckpoints
    from minitx.training.module import TransformerModule

    accumulate = settings.accumulate_grad_batches
    save = SaveCheckpoints(files, settings.save_every_n_steps, settings.keep_every_n_steps)
    trainer = _trainer(
        callbacks=[*extras.callbacks(config, files), save],
        max_steps=settings.max_steps,
        max_epochs=-1,
        val_check_interval=min(settings.val_every_n_steps, settings.max_steps) * accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        precision=precision,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=settings.gradient_clip_val or None,
        accelerator=settings.accelerator,
        devices=settings.devices,
        strategy=settings.strategy,
        num_nodes=settings.num_nodes,
        # Hides the events that a killed process wrote after its last save.
        logger=extras.loggers(config, files, None if start is None else start.step + 1),
        plugins=[AtomicCheckpointIO(files, start)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # Lightning would copy every batch to convert its floats to a true precision; a Batch has none.
    trainer.precision_plugin.convert_input = lambda batch: batch
    unprofiled = nullcontext()
    trainer.profiler.profile = lambda action: unprofiled  # would be called for 60 hooks of each step
    for part in model.modules():
        if isinstance(part, Stack):
            part.recompute = settings.recompute_activations
    if settings.compile is True:
        model.compile(mode=settings.compile_mode)
    # Converted here, because Lightning converts after it has loaded a checkpoint, which truncates fp64.
    module = TransformerModule(model.to(TRUE_DTYPES.get(precision)), task, config)
    batches = TrainingBatches(task, config, trainer.global_rank, first=lambda: trainer.global_step * accumulate)
    held_out = fixed_batches(validation, EXAMPLES_AT_ONCE, trainer.global_rank, trainer.world_size)
    if trainer.is_global_zero:
        with refuse_unwritable(files.folder):
            as_yaml = yaml.dump(config.to_dict(), Dumper=extras.dumper, sort_keys=False, allow_unicode=True)
            files.write("config.yaml", as_yaml.encode())
            (files.folder / "results.json").unlink(missing_ok=True)  # of a run that is extended
    with extras.around(trainer):
        trainer.fit(module, batches, held_out, ckpt_path=None if start is None else start.file)
        seconds = module.seconds
        results: dict[str, Any] = {"steps": trainer.global_step, "seconds": round(seconds, 2), "precision": precision}
        if config.run.init_from:
            results["init_from"] = config.run.init_from
        if settings.skip_nonfinite_steps:
            results["skipped_steps"] = int(module.steps.skipped)
        if trainer.is_global_zero:
            files.check_saved()
            predictor = load(files.folder, training_device(settings.accelerator))
            predictor.task = task  # its corpus is already open
            figures, text = extras.report(predictor)
            results |= figures
            skipped = f", {results['skipped_steps']:,} steps skipped" if results.get("skipped_steps") else ""
            print_line(f"{files.folder}: trained in {seconds:.1f} s{skipped}\n{text}")
            try:
                files.write("results.json", f"{json.dumps(results, indent=2)}\n".encode())
            except OSError as error:
                unwritten = f"{files.folder}: results.json cannot be written ({error.strerror})"
                raise RunFailed(f"{unwritten}; the run is trained and saved: --resume evaluates it again") from None
            extras.finish(trainer.loggers, config, results)  # a logger without a connection may raise
    return results


def _trainer(**settings: Any) -> Any:
    """Create Lightning's Trainer; a ConfigError if there is no such device, strategy or number of processes."""
    import lightning.pytorch as pl
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch.plugins.environments import LightningEnvironment

    try:
        trainer = pl.Trainer(**settings)
    except (MisconfigurationException, RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(f"trainer: {' '.join(str(error).split())}") from None
    if trainer.world_size == 1 and not is_first_process():
        raise ConfigError("RANK, LOCAL_RANK and SLURM_PROCID must be 0 or unset for a single process")
    alone = isinstance(getattr(trainer.strategy, "cluster_environment", None), LightningEnvironment)
    if trainer.num_nodes > 1 and alone and "MASTER_ADDR" not in os.environ:  # it would wait for ever
        raise ConfigError(f"trainer.num_nodes {trainer.num_nodes}: start it on each machine, with torchrun or srun")
    launched = os.environ.get("WORLD_SIZE")  # set by launchers; without one, Lightning starts the other processes
    if launched and launched != str(trainer.world_size):
        asked = f"trainer.devices and trainer.num_nodes ask for {trainer.world_size}"
        raise ConfigError(f"{launched} processes were launched, but {asked}")
    return trainer
