"""From the values of a config to a run that can start. Every mistake in a config is found here, before training."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError, all_results
from minitx.config.registry import build
from minitx.config.registry import resolve as option_defaults
from minitx.config.schema import OPEN_SECTIONS, Config, ModelConfig, config_from_dict, merged, open_section
from minitx.config.validation import check_plain
from minitx.data.examples import EQUALLY_LONG, positions
from minitx.data.loader import curriculum
from minitx.data.tasks import TASKS, Task
from minitx.hardware.devices import training_device, widest_float
from minitx.models.builder import build_model, resolved_positions
from minitx.models.transformers import Transformer, max_positions
from minitx.training.start import Changes, Start, find_start


class ResolvedRun(NamedTuple):
    """A run with every default filled in."""

    config: Config  # complete, as saved in every checkpoint
    task: Task  # with the tokenizer of the run
    model: Transformer  # initialized, from `start` unless that is resumed
    start: Start | None  # the checkpoint to resume or to initialize from
    changes: Changes  # settings that differ from those of `start`


def resolve(
    values: Mapping[str, Any] | Config,
    resume: bool = False,
    init_from: str | None = None,
    check_sizes: Callable[[Config, Task], None] = lambda config, task: None,
) -> ResolvedRun:
    """Resolve a config. Keys of `model` that it lacks are taken from the checkpoint that the run starts from.

    Args:
        values: a config as plain JSON types, without defaults; or a Config.
        resume: continue the newest run of this name instead of starting another.
        init_from: a checkpoint file or run folder to initialize from; default: run.init_from.
        check_sizes: called before the model is built, whose sizes may be a typo.

    Raises:
        ConfigError: with a line for each mistake.
    """
    values = values.to_dict() if isinstance(values, Config) else values
    config = _config_of(values)
    device = training_device(config.trainer.accelerator)
    if config.trainer.accelerator == "gpu" and device == "cpu":
        raise ConfigError("trainer.accelerator gpu: torch finds no GPU here; leave it at auto, or set cpu")
    if config.trainer.precision == "64-true" and widest_float(device) != torch.float64:
        raise ConfigError(f"trainer.precision 64-true needs trainer.accelerator cpu here: {device} has no float64")
    start = find_start(config, resume, init_from)
    if start is not None:
        model = start.config.to_dict()["model"]
        if not start.resumes:
            model["position_ids"].pop("after", None)  # tokens of another task, unless it is the same
        config = config_from_dict(merged({"model": model}, values))
        config = start.completed(dataclasses.replace(config, data=option_defaults(TASKS, config.data, "data")))
    task, model = all_results(lambda: build(TASKS, config.data, "data"), lambda: resolved_positions(config.model))
    if start is not None and (adopted := task.adopted(start.tokenizer)) is not None:
        task.vocabulary = adopted
    if start is not None and start.resumes:
        task.sampling = start.contents.get("sampling", 1)
    _check_framing(config, task)
    if model.position_ids.get("after") == ():  # coupled position ids restart at tokens of the task
        model = dataclasses.replace(model, position_ids={**model.position_ids, "after": task.boundaries})
    tokens = task.vocabulary.vocab_size
    model = dataclasses.replace(model, vocab_size=tokens if (size := model.vocab_size) is None else size)
    config = dataclasses.replace(config, data=option_defaults(TASKS, config.data, "data"), model=model)
    changes = {} if start is None else start.check(config, task)
    if size is not None and size < tokens:
        must = f"model.vocab_size must be at least the tokenizer's {tokens}, got {size}"
        raise ConfigError(f"{must}{_fixed(config, 'data with fewer tokens')}")
    check_sizes(config, task)
    torch.manual_seed(config.run.seed)
    network = build_model(config.model)
    _check_capacity(config, network, task)
    if start is not None and not start.resumes:  # Lightning restores a resumed run with its optimizer
        network.load_state_dict(checkpoint.weights(start.contents))
    return ResolvedRun(config, task, network, start, changes)


def _config_of(values: Mapping[str, Any]) -> Config:
    """Build the Config of plain values; an error about closed sections has the mistakes of open ones, too."""
    check_plain(values, "the config")
    try:
        return config_from_dict(values)
    except ConfigError:
        given: dict[str, Any] = {key.removeprefix("model."): open_section(values, key) for key in OPEN_SECTIONS}
        data = given.pop("data")
        model = ModelConfig(**{key: options for key, options in given.items() if options.get("name")})
        parts = (lambda: option_defaults(TASKS, data, "data"), lambda: resolved_positions(model))
        all_results(lambda: config_from_dict(values), *parts)
        raise


def _check_framing(config: Config, task: Task) -> None:
    """Refuse a task that the architecture cannot learn, and a curriculum that the run cannot finish."""
    architecture, unfit = config.model.architecture, ""
    if task.kind == "masked" and architecture != "encoder_only":
        unfit = f"masked tokens need encoder_only; {architecture} reads them all"
    elif task.kind == "stream" and architecture != "decoder_only":
        unfit = f"running text needs decoder_only, got {architecture}; encoder_only reads masked text (masked_text)"
    elif task.kind == "pairs" and architecture == "encoder_only":
        longest = task.reach if task.aligned else task.longest
        if longest[0] != longest[1] or not task.aligned:
            framed = " and ".join(f"data.{key} true" for key in ("add_bos", "add_eos") if getattr(task, key, False))
            here = f"here the longest have {longest[0]} and {longest[1]} tokens{f', with {framed}' if framed else ''}"
            unfit = f"{EQUALLY_LONG}; use encoder_decoder or decoder_only ({here})"
    if unfit:
        raise ConfigError(f"model.architecture: {unfit}{_fixed(config, 'other data')}")
    if architecture == "decoder_only" and task.kind == "pairs" and task.vocabulary.special.sep < 0:
        lacks = f"a token <sep> between question and answer, which the tokenizer of {config.run.init_from} lacks"
        raise ConfigError(f"data.name: a decoder alone needs {lacks}; train it on running text (--data.name text)")
    if (stages := curriculum(task)) and stages[-1][0] >= config.trainer.max_steps:
        took = f"the {stages[-1][0]} steps of data.stages"
        raise ConfigError(f"trainer.max_steps must be larger than {took}, got {config.trainer.max_steps}")
    if config.model.prefix_lm and task.kind == "stream":
        raise ConfigError("model.prefix_lm needs questions and answers; running text has no question")


def _fixed(config: Config, choice: str) -> str:
    """The end of a sentence about a key of `model` that a checkpoint determines."""
    return f"; with --init_from it is the checkpoint's: choose {choice}" if config.run.init_from else ""


def _check_capacity(config: Config, model: Transformer, task: Task) -> None:
    """Refuse a model with fewer positions than the task's longest sequence, in the stack that lacks most."""
    ids = f"model.position_ids.name {config.model.position_ids['name']}"
    longest = positions(config.model.architecture, task.reach)
    limits = {stack: max_positions(getattr(model, stack)) or needed for stack, needed in longest.items()}
    stack = max(limits, key=lambda stack: longest[stack] - limits[stack])
    if (needed := longest[stack]) > (limit := limits[stack]):
        got, must = limit, f"{ids} with its options must allow at least {needed} tokens"
        if limit != getattr(model, stack).position_ids.max_len:
            got = config.model.position.get("max_len", limit)
            must = f"model.position.max_len must be at least {needed + got - limit}{f' with {ids}' * (got > limit)}"
        raise ConfigError(f"{must} for the longest {stack} sequence, got {got}{_fixed(config, 'shorter data')}")
