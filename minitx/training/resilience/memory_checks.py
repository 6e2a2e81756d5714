"""Sizes of a config, checked before anything is built: a typo may need more memory than there is."""

import dataclasses
import os

import torch

from minitx.checkpoints.model_weights import on_meta
from minitx.config.errors import ConfigError
from minitx.config.schema import Config, ModelConfig
from minitx.data.examples import positions
from minitx.data.splits import SPLITS
from minitx.data.tasks import Task
from minitx.data.tasks.question_tasks import QuestionTask

GIB = 2**30
WEIGHT_BYTES = 4
"""fp32, in which weights are initialized."""
ACTIVATION_BYTES = 2
"""bf16 or fp16, the narrowest format of training."""
EXAMPLE_BYTES = 9
"""An int64 id and a bool, whether it is kept, for each symbol of an example."""
PARTS = {
    "embedding and head": ("vocab_size", "d_model"),
    "position": ("position.name", "position.max_len", "position.buckets", "position.hidden", "d_model", "n_heads"),
    "layers": ("n_layers", "n_decoder_layers", "d_model", "d_ff", "d_head", "n_heads"),
}
"""Parts of a model, and the keys of `model` that determine their size."""


def check_sizes(config: Config, task: Task) -> None:
    """Refuse a resolved config whose held-out examples, model or batch exceed the memory of this machine.

    Raises:
        ConfigError: with the keys that make them so large; or an error of build_model.
    """
    if (available := memory_bytes()) is not None:
        check_held_out(task, available)
        if torch.cuda.is_available():
            available = max(available, torch.cuda.get_device_properties(0).total_memory)
        check_batch(task, config, check_weights(config, available), available)


def memory_bytes() -> int | None:
    """Physical memory of this machine; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_held_out(task: Task, available: int) -> None:
    """Refuse held-out examples that cannot be sampled: their questions are collected, and their answers added."""
    if isinstance(task, QuestionTask):
        for split in SPLITS[1:]:
            number, (question, answer) = task.held_out(split), task.longest
            needed = number * (2 * question + answer) * EXAMPLE_BYTES
            require_memory(f"data.{split}_size {number:,} examples of up to {question:,} symbols", needed, available)


def check_weights(config: Config, available: int) -> int:
    """Refuse a model, its vocab_size given, that cannot be trained; returns the bytes that it takes besides a batch.

    A step needs the weights, their gradients and at least one moment of the optimizer for each; the backward starts
    without gradients. What FSDP2 shards over processes counts as nothing, but each process builds all weights first.
    """
    model, trainer = config.model, config.trainer
    kept = 0 if trainer.strategy == "fsdp2" else ACTIVATION_BYTES if trainer.precision == "bf16-true" else WEIGHT_BYTES
    # Position schemes may build lists with an entry per head, so they are counted once the rest is known to fit.
    for candidate in (dataclasses.replace(model, position={"name": "none"}, window_position=None), model):
        counts = parameters(candidate)
        needed = max(WEIGHT_BYTES, 3 * kept) * sum(counts.values())
        values = dataclasses.asdict(model) | {f"position.{name}": value for name, value in model.position.items()}
        keys = PARTS[max(counts, key=counts.__getitem__)]
        sizes = ", ".join(f"model.{key} {values[key]}" for key in keys if values.get(key) is not None)
        require_memory(f"training with {sizes}", needed, available)
    return 2 * kept * sum(counts.values())


def check_batch(task: Task, config: Config, beside: int, available: int) -> None:
    """Refuse a batch whose activations plus the bytes in `beside` exceed the memory of this machine and of its GPU.

    For the backward, each layer keeps at least the inputs of attention and of the feed-forward network, the queries,
    keys and values, the attended values and the network's inner values; with recomputed activations its input alone.
    """
    model = config.model
    tokens = max(positions(model.architecture, task.longest).values())
    heads = 2 * model.n_heads + 2 * (model.n_kv_heads or model.n_heads)
    values = 2 * model.d_model + heads * (model.d_head or model.d_model // model.n_heads) + model.inner_width
    values = model.d_model if config.trainer.recompute_activations else values
    needed = task.batch_size * tokens * min(model.n_layers, model.decoder_layers) * values * ACTIVATION_BYTES + beside
    asked = f"data.batch_size {task.batch_size} examples of up to {tokens:,} tokens"
    asked += f", with model.d_model {model.d_model} and model.n_heads {model.n_heads},"
    require_memory(asked, needed, available)


def require_memory(asked: str, needed: int, available: int) -> None:
    """Raise a ConfigError if the numbers in `asked` need more bytes than are available."""
    if needed > available:
        sizes = f"{needed / GIB:,.0f} GiB, and this machine has {available / GIB:,.1f} GiB of memory"
        raise ConfigError(f"{asked} would take {sizes}: make one of these numbers smaller")


def parameters(config: ModelConfig) -> dict[str, int]:
    """Number of weights by PARTS, extrapolated from a model with at most two layers in each stack."""
    layers = {"encoder": config.n_layers, "decoder": config.decoder_layers}
    n_decoder_layers = None if config.n_decoder_layers is None else min(config.n_decoder_layers, 2)
    shallow = dataclasses.replace(config, n_layers=min(config.n_layers, 2), n_decoder_layers=n_decoder_layers)
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in on_meta(shallow).named_parameters():
        stack, _, rest = name.partition(".")
        times = layers[stack] - 1 if rest.startswith("layers.1.") else 1  # the second layer counts for all later ones
        part = next((part for part in PARTS if rest.startswith(part)), "embedding and head")
        counts[part] += parameter.numel() * times
    return counts
