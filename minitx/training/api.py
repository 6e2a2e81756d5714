"""minitx.train: training from Python, with the same result as the command line."""

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minitx.checkpoints import format as checkpoint
from minitx.config import yaml_files
from minitx.config.errors import ConfigError, did_you_mean
from minitx.config.schema import Config, ModelConfig
from minitx.data.batch import IGNORE
from minitx.evaluation.perplexity import count_unknown
from minitx.evaluation.report import evaluation_report, table
from minitx.extensions.python_files import with_imports
from minitx.hardware.devices import training_device
from minitx.hardware.memory import freed_memory_kept
from minitx.inference.predictor import Predictor
from minitx.training import run
from minitx.training.choices.numerics import Numerics, choose_numerics, first_batch, training_kernel
from minitx.training.folder import RunFiles
from minitx.training.resilience.disk import TolerantFiles
from minitx.training.resilience.folder_lock import locked_folder
from minitx.training.resilience.memory_checks import check_sizes
from minitx.training.resolve import ResolvedRun, resolve
from minitx.training.start import UNTRAINED, Start, described


def train(
    config: str | Path | Mapping[str, Any] | Config,
    changes: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    init_from: str | Path | None = None,
) -> dict[str, Any]:
    """Train a model as `minitx train --config CONFIG` does.

    Args:
        config: a YAML file, the name of a bundled config (`minitx list`), its values as a dict, or a Config.
        changes: values by key, as on the command line: {"trainer.max_steps": 300}.
        resume: continue the newest run of this name instead of starting another.
        init_from: a checkpoint file or run folder: start a new run with its weights.

    Returns:
        The figures of results.json.

    Raises:
        ConfigError: an invalid key or value, or a config that cannot be run; raised before training.
        RunFailed: training diverged, or its outcome could not be written.
        KeyboardInterrupt: after Ctrl-C, once the current step is saved; SystemExit after another signal.
    """
    changes = {} if changes is None else changes
    if not isinstance(changes, Mapping) or not all(isinstance(key, str) for key in changes):
        raise ConfigError(f"changes: expected values by key, such as {{'trainer.max_steps': 300}}, got {changes!r:.80}")
    if not isinstance(resume, bool):
        raise ConfigError(f"resume: expected true or false (run.name and run.folder name the run), got {resume!r:.80}")
    if isinstance(config, Config):
        config = config.to_dict()
    values = config if isinstance(config, Mapping) else yaml_files.read(str(config))
    return train_config(yaml_files.overridden(values, changes), resume, None if init_from is None else str(init_from))


def train_config(
    config: Mapping[str, Any] | Config,
    resume: bool = False,
    init_from: str | None = None,
    extras: run.RunExtras | None = None,
) -> dict[str, Any]:
    """Train a Config, or plain JSON types without defaults, with all callbacks or with `extras`; see train."""
    complete = resolved(config, resume, init_from)
    refuse_missing_loggers(complete.config)
    _refuse_processes_of_a_session(complete.config)
    _refuse_misfit_of_slurm(complete.config)
    _refuse_unfit_examples(complete)
    return run.train(complete, extras or AllExtras())


def refuse_missing_loggers(config: Config) -> None:
    """Raise a ConfigError if a package of log.to is not installed."""
    for name in {"wandb", "mlflow"}.intersection(config.log.to):
        if find_spec(name) is None:
            raise ConfigError(f"log.to: {name} is not installed: pip install {name}, or remove it from log.to")


def _refuse_processes_of_a_session(config: Config) -> None:
    """Raise a ConfigError if Lightning would fork an interactive session, which then has no run to evaluate."""
    settings, launched = config.trainer, "WORLD_SIZE" in os.environ
    several = settings.num_nodes > 1 or not re.fullmatch(r"auto|1|\d+, *", str(settings.devices))
    without_file = sys.argv[:1] in ([""], ["-"], ["-c"]) and not launched  # which a process could repeat
    typed = hasattr(sys, "ps1") or sys.flags.interactive or without_file
    if (several or settings.strategy != "auto") and typed:
        one = "set trainer.devices 1, trainer.num_nodes 1 and trainer.strategy auto"
        raise ConfigError(f"an interactive session trains on one device: {one}, or use a script")


def _refuse_misfit_of_slurm(config: Config) -> None:
    """Raise a ConfigError if Lightning would refuse the tasks of a SLURM job, which it does after the run has a folder.

    A single process that srun did not start may belong to a larger job.
    """
    given, settings = os.environ, config.trainer
    interactive = given.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if "SLURM_NTASKS" not in given or interactive or "TORCHELASTIC_RUN_ID" in given:
        return
    tasks = given["SLURM_NTASKS"]
    if tasks not in ("0", "1") and "SLURM_NTASKS_PER_NODE" not in given:
        advice = "submit the job with --ntasks-per-node, or unset SLURM_NTASKS for a single process"
        raise ConfigError(f"SLURM_NTASKS is {tasks} without SLURM_NTASKS_PER_NODE: {advice}")
    if "SLURM_STEP_ID" not in given and settings.num_nodes == 1 and str(settings.devices) in ("1", "auto"):
        return
    for key, name in (("devices", "SLURM_NTASKS_PER_NODE"), ("num_nodes", "SLURM_NNODES")):
        wanted = str(getattr(settings, key))
        if wanted.isdigit() and (found := given.get(name, wanted)) != wanted:  # not of auto, or of indices
            raise ConfigError(f"trainer.{key} is {wanted}, and {name} is {found}: make them equal")


def _refuse_unfit_examples(run: ResolvedRun) -> None:
    """Raise a ConfigError if the first batch does not fit the architecture, or no example is held out."""
    task = run.task
    first_batch(run.config, task)
    if not len(task.examples(task.final_split, 1)):
        raise ConfigError(f"data.name: the task {run.config.data['name']} has no examples for {task.final_split}")


def resolved(config: Mapping[str, Any] | Config, resume: bool = False, init_from: str | None = None) -> ResolvedRun:
    """Import a config's files and resolve it, its sizes and the training state that it resumes checked; see resolve."""
    from minitx.training.callbacks.stop_when import StopWhen, check_metric
    from minitx.training.resilience.training_state import checked

    found = checked(resolve(with_imports(config), resume, init_from, check_sizes))
    check_metric(found.config.trainer.stop_when, found.task)
    _check_stopped(found, StopWhen(found.config.trainer.stop_when))
    _check_strategy(found)
    return found


def _check_stopped(run: ResolvedRun, stop: Any) -> None:
    """Raise a ConfigError if stop_when has ended the run to resume and settings of training have changed."""
    start, trained = run.start, {key: pair for key, pair in run.changes.items() if not key.startswith(UNTRAINED)}
    if start is not None and start.resumes and trained:
        stop.load_state_dict(start.contents["callbacks"].get(stop.state_key, stop.state_dict()))
        if stop.stopped:
            ended = f"--resume: {start.file.parent} was ended by trainer.stop_when at step {start.step:,}"
            raise ConfigError(f"{ended}; changed settings need another trainer.stop_when or null: {described(trained)}")


STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true", "fsdp2")
"""Of Lightning's others, fsdp clips by the gradient of one process alone and cannot resume a run of one device, and
deepspeed has checkpoints of its own. Processes that are spawned or forked end with training: the first one would have
no run to evaluate."""


def _check_strategy(run: ResolvedRun) -> None:
    """Raise a ConfigError if trainer.strategy is not supported, or not for this model."""
    name = run.config.trainer.strategy
    if name not in STRATEGIES:
        raise ConfigError(f"trainer.strategy {name!r} is not supported; {did_you_mean(name, STRATEGIES)}")
    supported = ("auto", "32-true", "bf16-mixed", "bf16-true")
    if name == "fsdp2" and (precision := run.config.trainer.precision) not in supported:
        expected = f"one of {', '.join(supported)} with trainer.strategy fsdp2"
        raise ConfigError(f"trainer.precision must be {expected}, got {precision}")
    scalars = [name for name, weight in run.model.named_parameters() if not weight.dim()]
    if name == "fsdp2" and scalars:
        raise ConfigError(f"trainer.strategy fsdp2 cannot shard a weight of one number, {scalars[0]}; set ddp")


UNINFORMATIVE = (
    ".*resuming from a checkpoint that ended before the epoch ended.*",
    ".*callbacks used to create the checkpoint need to be provided.*",  # settings may change on resume
    ".*It is recommended to use .self.log.*sync_dist.*",  # figures are summed before they are logged
    ".*isinstance.treespec, LeafSpec.*",
    ".*smaller than the logging interval.*",
    ".*GPU available but not used.*",
    ".*AccumulateGrad node's stream does not match.*",  # a CUDA graph keeps the nodes of its capture
)
"""Warnings of Lightning and torch that do not apply to batches sampled by number, or repeat minitx's."""


class AllExtras(run.RunExtras):
    """All callbacks of a config, those passed, and the complete evaluation. Imports Lightning only for training."""

    files = TolerantFiles
    dumper = yaml_files.Dumper
    numerics: Numerics
    signals: Any  # the callback StopOnSignal
    stop: Any = None  # the callback StopWhen, if the config selects it
    at_end: ExitStack  # restores settings of the process after the run

    def __init__(self, *callbacks: Any) -> None:
        self.added = callbacks

    @contextmanager
    def folder(self, config: Config, start: Start | None) -> Iterator[Path]:
        with ExitStack() as self.at_end, locked_folder(config, None if start is None else start.file.parent) as folder:
            with suppress(FileNotFoundError):  # one that cannot be read: before config.yaml is replaced
                (folder / "best.ckpt").open("rb").close()
            yield folder

    def loggers(self, config: Config, files: RunFiles, purge_step: int | None) -> list[Any]:
        from minitx.training.callbacks.loggers import create

        # TensorBoard's is the first, which Lightning calls trainer.logger; one that is named twice is one.
        names = sorted(dict.fromkeys(config.log.to), key="tensorboard".__ne__)
        return [create(name, files, purge_step) for name in names]

    def precision(self, run: ResolvedRun) -> tuple[str, str]:
        self.numerics, reason = choose_numerics(run)
        return self.numerics.precision, reason

    def notes(self, run: ResolvedRun) -> list[str]:
        return [*_start_notes(run), *_without_effect(run.config.model), *run.task.notes]

    def callbacks(self, config: Config, files: RunFiles) -> list[Any]:
        from minitx.training.callbacks.average_weights import AverageWeights
        from minitx.training.callbacks.log_attention import LogAttention
        from minitx.training.callbacks.log_embeddings import LogEmbeddings
        from minitx.training.callbacks.profiling import ProfileSteps
        from minitx.training.callbacks.stop_when import StopWhen
        from minitx.training.choices.auto_compile import DEVICES, AutoCompile
        from minitx.training.choices.cuda_graphs import CudaGraphs
        from minitx.training.resilience.divergence import StopOnDivergence
        from minitx.training.resilience.signals import StopOnSignal

        lightning = logging.getLogger("lightning.pytorch")
        self.at_end.callback(lightning.setLevel, lightning.level)
        lightning.setLevel(logging.WARNING)
        self.at_end.enter_context(warnings.catch_warnings())
        for message in UNINFORMATIVE:
            warnings.filterwarnings("ignore", message)
        settings = config.trainer
        if settings.strategy == "fsdp2":
            import_module("minitx.training.sharding")  # registers it
        divergence = StopOnDivergence(config, files)
        wanted: list[Any] = [divergence, *super().callbacks(config, files)]
        if settings.stop_when.metric is not None:
            self.stop = StopWhen(settings.stop_when)
            wanted.append(self.stop)  # before those that log after the last step
        if "tensorboard" in config.log.to:
            wanted.append(LogAttention(config.log.attention))
            wanted += [LogEmbeddings(config.log.embeddings)] * bool(config.log.embeddings.examples)
        if settings.profile:
            wanted.insert(0, ProfileSteps(settings.profile))  # first, to exclude the others' work after a step
        elif settings.compile == "auto" and settings.strategy != "fsdp2":  # its hooks do not work in a trial
            wanted += [CudaGraphs(), AutoCompile()] * (training_device(settings.accelerator) in DEVICES)
        if settings.ema:
            wanted.append(AverageWeights(settings.ema))  # the last to end a validation: all others use the average
        self.signals = StopOnSignal(files, divergence.check)
        return [*wanted, self.signals, *self.added]

    @contextmanager
    def around(self, trainer: Any) -> Iterator[None]:
        with training_kernel(self.numerics.attention_kernel), self.signals.around(trainer), freed_memory_kept():
            yield

    def report(self, predictor: Predictor) -> tuple[dict[str, Any], str]:
        figures, ema = evaluation_report(predictor), predictor.config.trainer.ema
        outcome, text = ({}, "") if self.stop is None else self.stop.outcome()
        if ema:
            outcome["weights"] = f"moving average, trainer.ema {ema}"
            text += f"{outcome['weights']}\n"
        return outcome | figures, f"{text}{table(figures)}"

    def finish(self, loggers: list[Any], config: Config, results: dict[str, Any]) -> None:
        from minitx.training.callbacks.loggers import finish

        for logger in loggers:
            finish(logger, config, results)


def _without_effect(model: ModelConfig) -> list[str]:
    """A line for each option of the model that changes nothing."""
    schemes = {"model.position": model.position, "model.window_position": model.window_position or {}}
    unscaled = [
        key for key, given in schemes.items() if given.get("scaling") == "none" and given.get("factor", 1.0) != 1.0
    ]
    lines = [f"{key}.factor has no effect without {key}.scaling" for key in unscaled]
    unused = model.window_position is not None and not any(model.windows)
    return [*lines, *(["model.window_position has no effect without model.window"] if unused else [])]


def _start_notes(run: ResolvedRun) -> list[str]:
    """The step that a run resumes after or the weights that it starts from, and the settings that differ."""
    start, task, found = run.start, run.task, run.changes
    if start is None:
        return []
    if start.resumes:
        lines = [f"--resume: continues after step {start.step:,}"]
        if task.sampling == 1:
            lines.append("--resume: training examples are sampled as by the earlier version that began this run")
        newest = checkpoint.versions(start.file.parent.parent)[-1:]
        if newest and newest[0].name != start.file.parent.name:
            lines.append(f"--resume: {newest[0]} has no last.ckpt, it ended before its first save")
        return [*lines, f"--resume: {described(found)}"] if found else lines
    same_tokens = task.vocabulary.to_dict() == start.tokenizer.to_dict()
    taken = "the weights and the tokenizer" if same_tokens else "the weights"
    lines = [f"--init_from: {taken} of {start.path} ({start.config.run.name})"]
    lines += [f"--init_from: {described({key: pair})}" for key, pair in found.items()]
    if not same_tokens:
        lines.append("--init_from: this task has its own tokens: ids differ in meaning from the checkpoint's")
    elif unknown := _unknown_share(run):
        lines.append(f"--init_from: {unknown:.1%} of the tokens in the first batch are <unk>, unknown to the tokenizer")
    return lines


def _unknown_share(run: ResolvedRun) -> float:
    """The share of <unk> among the labels of the first batch, or in its text if <unk> is never a label (masked)."""
    batch = first_batch(run.config, run.task)
    tokens = batch.labels[batch.labels != IGNORE]
    if run.task.kind == "masked" and batch.src is not None:
        tokens = batch.src[batch.src_keep]
    return count_unknown(tokens, run.task.vocabulary.special) / max(len(tokens), 1)
