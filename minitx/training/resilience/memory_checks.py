"""Size of a config's model and batch, checked before the model is built: a typo may need more memory than there is."""

import dataclasses
import os

import torch

from minitx.checkpoints.model_weights import on_meta
from minitx.config.errors import ConfigError
from minitx.config.schema import Config, ModelConfig
from minitx.data.examples import positions
from minitx.data.tasks import Task

GIB = 2**30
WEIGHT_BYTES = 4
"""fp32, in which weights are initialized."""
ACTIVATION_BYTES = 2
"""bf16 or fp16, the narrowest format of training."""
PARTS = {
    "embedding and head": ("vocab_size", "d_model"),
    "positions": ("position.name", "position.max_len", "position.buckets", "position.hidden", "d_model", "n_heads"),
    "layers": ("n_layers", "n_decoder_layers", "d_model", "d_ff", "d_head", "n_heads"),
}
"""Parts of a model, and the keys of `model` that decide on their size."""


def check_sizes(config: Config, task: Task) -> None:
    """Refuse a resolved config whose model or batch exceeds the memory of this machine, with a ConfigError."""
    check_memory(config.model)
    check_batch(task, config)


def memory_bytes() -> int | None:
    """Physical memory of this machine, where the system reports it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(config: ModelConfig) -> None:
    """Refuse a model, its vocab_size given, whose weights exceed this machine's memory.

    Raises:
        ConfigError: with the keys that make it so large; or an error of build_model.
    """
    available = memory_bytes()
    if available is None:
        return
    # Position schemes may build lists with an entry per head, so they are counted once the rest is known to fit.
    for candidate in (dataclasses.replace(config, position={"name": "none"}, window_position=None), config):
        counts = parameters(candidate)
        needed = WEIGHT_BYTES * sum(counts.values())
        if needed > available:
            values = dataclasses.asdict(config) | {f"position.{name}": value for name, value in config.position.items()}
            keys = PARTS[max(counts, key=counts.__getitem__)]
            sizes = ", ".join(f"model.{key} {values[key]}" for key in keys if values.get(key) is not None)
            raise ConfigError(
                f"{sizes} would make {needed / GIB:,.0f} GiB of weights, and this machine has "
                f"{available / GIB:,.1f} GiB of memory: make one of them smaller"
            )


def check_batch(task: Task, config: Config) -> None:
    """Refuse a batch whose activations exceed the memory of this machine and of its GPU, with a ConfigError.

    For the backward, each layer keeps at least the inputs of attention and of the feed-forward network, the queries,
    keys and values, the attended values and the network's inner values; with recomputed activations its input alone.
    """
    available, model = memory_bytes(), config.model
    if available is not None and torch.cuda.is_available():
        available = max(available, torch.cuda.get_device_properties(0).total_memory)
    tokens = max(positions(model.architecture, task.longest).values())
    heads = 2 * model.n_heads + 2 * (model.n_kv_heads or model.n_heads)
    values = 2 * model.d_model + heads * (model.d_head or model.d_model // model.n_heads) + model.inner_width
    values = model.d_model if config.trainer.recompute_activations else values
    layers = min(model.n_layers, model.decoder_layers)
    needed = task.batch_size * tokens * layers * values * ACTIVATION_BYTES
    if available is not None and needed > available:
        raise ConfigError(
            f"data.batch_size {task.batch_size} examples of up to {tokens:,} tokens would take {needed / GIB:,.0f} "
            f"GiB, and this machine has {available / GIB:,.1f} GiB of memory: make them fewer or shorter"
        )


def parameters(config: ModelConfig) -> dict[str, int]:
    """Number of weights by PARTS, extrapolated from a model with at most two layers in each stack."""
    layers = {"encoder": config.n_layers, "decoder": config.decoder_layers}
    n_decoder_layers = None if config.n_decoder_layers is None else min(config.n_decoder_layers, 2)
    shallow = dataclasses.replace(config, n_layers=min(config.n_layers, 2), n_decoder_layers=n_decoder_layers)
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in on_meta(shallow).named_parameters():
        stack, _, rest = name.partition(".")
        times = layers[stack] - 1 if rest.startswith("layers.1.") else 1  # the second layer counts for all later ones
        part = next((part for part in ("layers", "positions") if rest.startswith(part[:-1])), "embedding and head")
        counts[part] += parameter.numel() * times
    return counts
