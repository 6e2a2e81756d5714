"""Size of a config's model, checked before it is built: a typo or a hostile file may ask for more memory than there is.

Parameters are counted on torch's meta device, where tensors have shapes and no memory.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.data.tasks import Task
from minitx.models.builder import build_model
from minitx.models.transformers import Transformer

GIB = 2**30
WEIGHT_BYTES = 4
"""fp32, in which weights are initialized."""
ID_BYTES = 8
PARTS = {
    "embedding and head": ("vocab_size", "d_model"),
    "positions": ("position", "d_model"),
    "layers": ("n_layers", "n_decoder_layers", "d_model", "d_ff", "d_head", "n_heads"),
}
"""Parts of a model, and the keys of `model` that decide on their size."""
WIDTHS = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "vocab_size")
"""Keys of `model` whose value is at most the number of weights."""
TABLES = ("max_len", "buckets")
"""Options of position schemes with the same property."""


def memory_bytes() -> int | None:
    """Physical memory of this machine, where the system reports it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(config: ModelConfig) -> None:
    """Refuse a model whose weights exceed this machine's memory.

    Args:
        config: with its vocab_size.

    Raises:
        ConfigError: with the keys that make it so large; or an error of build_model.
    """
    available = memory_bytes()
    if available is None:
        return
    # Position schemes may build lists with an entry per head, so they are counted once the rest is known to fit.
    for candidate in (dataclasses.replace(config, position={"name": "none"}), config):
        sizes = _sizes(candidate)
        largest = max(sizes, key=sizes.__getitem__)
        too_large = sizes[largest] * WEIGHT_BYTES > available  # even a meta tensor of it may overflow
        counts = {largest: sizes[largest]} if too_large else parameters(candidate)
        needed = WEIGHT_BYTES * sum(counts.values())
        if needed > available:
            keys = _keys(config, max(counts, key=counts.__getitem__))
            raise ConfigError(
                f"{keys} would make {needed / GIB:,.0f} GiB of weights, and this machine has "
                f"{available / GIB:,.1f} GiB of memory: make one of them smaller"
            )


def _sizes(config: ModelConfig) -> dict[str, int]:
    """Widths and table sizes of a config, by key."""
    tables = {f"position.{name}": value for name, value in config.position.items() if name in TABLES}
    sizes = {name: getattr(config, name) for name in WIDTHS} | tables
    return {name: value for name, value in sizes.items() if isinstance(value, int)}


def _keys(config: ModelConfig, part: str) -> str:
    """The keys that decide on the size of a part or are one, with their values."""
    values = dataclasses.asdict(config)
    values |= {f"position.{name}": value for name, value in config.position.items()}
    return ", ".join(f"model.{key} {values[key]}" for key in PARTS.get(part, (part,)) if values[key] is not None)


def check_batch(task: Task) -> None:
    """Refuse a batch whose token ids exceed this machine's memory.

    Raises:
        ConfigError: with the key.
    """
    available = memory_bytes()
    tokens = sum(task.longest) + 2
    needed = task.batch_size * tokens * ID_BYTES
    if available is not None and needed > available:
        raise ConfigError(
            f"data.batch_size {task.batch_size} examples of up to {tokens:,} tokens would take {needed / GIB:,.0f} "
            f"GiB, and this machine has {available / GIB:,.1f} GiB of memory: make them fewer or shorter"
        )


def parameters(config: ModelConfig) -> dict[str, int]:
    """Number of weights by PARTS, extrapolated from a model with at most two layers in each stack."""
    layers = {"encoder": config.n_layers, "decoder": config.decoder_layers}
    shallow = dataclasses.replace(
        config,
        n_layers=min(config.n_layers, 2),
        n_decoder_layers=None if config.n_decoder_layers is None else min(config.n_decoder_layers, 2),
    )
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in on_meta(shallow).named_parameters():
        stack, _, rest = name.partition(".")
        times = layers[stack] - 1 if rest.startswith("layers.1.") else 1  # the second layer counts for all later ones
        part = next((part for part in ("layers", "positions") if rest.startswith(part[:-1])), "embedding and head")
        counts[part] += parameter.numel() * times
    return counts


def on_meta(config: ModelConfig, vocab_size: int | None = None) -> Transformer:
    """The model of a config on torch's meta device.

    Raises:
        ConfigError: sizes that contradict each other, or that no tensor can have.
    """
    try:
        with torch.device("meta"):
            return build_model(config, vocab_size)
    except RuntimeError:
        raise ConfigError(f"model.d_model {config.d_model} and the other sizes exceed those of a tensor") from None


def _is_small(config: ModelConfig, sizes: Mapping[str, int]) -> bool:
    """Whether an upper bound of the model's size is below a GiB."""
    inner = max(sizes.get("d_ff", 0), 4 * config.d_model, config.n_heads * (config.d_head or config.d_model))
    layers = 2 * (config.n_layers + (config.n_decoder_layers or 0))
    rows = sum(value for name, value in sizes.items() if name not in ("d_model", "d_ff", "d_head"))
    return WEIGHT_BYTES * inner * (config.d_model * 16 * (layers + 1) + 4 * rows) < GIB


def check_weights(weights: Mapping[str, Tensor], config: ModelConfig, vocab_size: int) -> None:
    """Check that weights belong to a config, before its model is built.

    Args:
        weights: by name, for model.load_state_dict.
        config: of the model.
        vocab_size: for a config without one.

    Raises:
        ConfigError: a size that the weights cannot have; a weight that is missing, unknown, not finite, not floating
            point, or of another shape.
    """
    total = sum(tensor.numel() for tensor in weights.values())
    config = dataclasses.replace(config, vocab_size=config.vocab_size or vocab_size)
    sizes = _sizes(config)
    depths = {"n_layers": config.n_layers, "n_decoder_layers": config.n_decoder_layers or 0}
    for values, limit in ((sizes, total), (depths, len(weights))):
        for name, value in values.items():
            if value > limit:
                found = f"there are {len(weights)} weights of {total:,} numbers"
                raise ConfigError(f"its config has model.{name} {value}, but {found}")
    # The first meta tensor makes torch import its compiler, which takes a second.
    model = build_model(config) if _is_small(config, sizes) else on_meta(config)
    needed = sum(parameter.numel() for parameter in model.parameters())
    distinct = sum({tensor.data_ptr(): tensor.numel() for tensor in weights.values()}.values())
    if distinct < needed <= total:
        raise ConfigError(f"its config needs {needed:,} weights, but there are {distinct:,}, several times over")
    expected = model.state_dict()
    for name in [*expected, *weights]:
        if name not in weights or name not in expected:
            raise ConfigError(f"the weights {'lack' if name in expected else 'have an unknown'} {name[:100]!r}")
        tensor, shape = weights[name], [*expected[name].shape]
        if shape != [*tensor.shape]:
            raise ConfigError(f"the weights {name!r} must have the shape {shape} by the config, got {[*tensor.shape]}")
        if not tensor.is_floating_point():
            raise ConfigError(f"the weights {name!r} must be floating point, got {tensor.dtype}")
        if bad := int((~tensor.isfinite()).sum()):
            raise ConfigError(f"the weights {name!r} must be finite, got {bad} of {tensor.numel()} that are not")
