"""How large the model of a config is, told before any of it is made: a slip of the keyboard, or a hostile file, asks
for more memory than there is. Builds on torch's meta device, where tensors have shapes and no memory.
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
BYTES = 4
"""Of a weight as it is made, fp32."""
ID = 8
"""Of a token's id."""
SMALL = GIB
"""Bytes of a model that may be made before its weights are compared with it."""
PARTS = ("embedding and head", "positions", "layers")
WIDTHS = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "vocab_size")
"""Sizes of the config of which each has at least as many weights."""
TABLES = ("max_len", "buckets")
"""The same among the options of position schemes."""


def memory() -> int | None:
    """Bytes of this machine's memory, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(config: ModelConfig, room: int | None = None) -> None:
    """Refuse a model whose weights alone this machine cannot hold.

    Args:
        config: with its vocab_size.
        room: bytes that there are; by default the machine's.

    Raises:
        ConfigError: with the keys that make it so large; and whatever build_model says of numbers that do not fit.
    """
    room = memory() if room is None else room
    if room is None:
        return
    # A scheme may make lists as long as there are heads, so it has its turn once the rest is known to fit.
    for asked in (dataclasses.replace(config, position={"name": "none"}), config):
        counts = _too_wide(asked, room) or parameters(asked)
        needed = BYTES * sum(counts.values())
        if needed <= room:
            continue
        part = max(counts, key=counts.__getitem__)
        raise ConfigError(
            f"{_keys(config, part)} would make {needed / GIB:,.0f} GiB of weights, and this machine has "
            f"{room / GIB:,.1f} GiB of memory: make one of them smaller"
        )


def _sizes(config: ModelConfig) -> dict[str, int | None]:
    """The widths and tables that a config asks for, each by itself."""
    tables = {f"position.{name}": value for name, value in config.position.items() if name in TABLES}
    return {name: getattr(config, name) for name in WIDTHS} | tables


def _too_wide(config: ModelConfig, room: int) -> dict[str, int]:
    """One size that fills the memory by itself, before even a meta tensor of it overflows."""
    values = {name: value or 0 for name, value in _sizes(config).items()}
    name = max(values, key=values.__getitem__)
    return {name: values[name]} if values[name] * BYTES > room else {}


def _keys(config: ModelConfig, part: str) -> str:
    """The keys that decide on the size of a part, with their values."""
    names = {
        "embedding and head": ("vocab_size", "d_model"),
        "positions": ("position", "d_model"),
        "layers": ("n_layers", "n_decoder_layers", "d_model", "d_ff", "d_head", "n_heads"),
    }.get(part, (part,))
    told = []
    for name in names:
        _, _, option = name.partition(".")
        value = config.position[option] if option else getattr(config, name)
        if value is not None:
            told.append(f"model.{name} {value}")
    return ", ".join(told)


def check_batch(task: Task, room: int | None = None) -> None:
    """Refuse a batch whose token ids alone this machine cannot hold.

    Args:
        task: as it would be trained.
        room: bytes that there are; by default the machine's.

    Raises:
        ConfigError: with the key.
    """
    room = memory() if room is None else room
    tokens = sum(task.longest) + 2
    needed = task.batch_size * tokens * ID
    if room is not None and needed > room:
        raise ConfigError(
            f"data.batch_size {task.batch_size} examples of up to {tokens:,} tokens would take {needed / GIB:,.0f} "
            f"GiB, and this machine has {room / GIB:,.1f} GiB of memory: make them fewer or shorter"
        )


def parameters(config: ModelConfig) -> dict[str, int]:
    """Weights by PARTS, counted on a model with at most two layers in each stack; more of them are more of the same."""
    deep = {"encoder": config.n_layers, "decoder": config.decoder_layers}
    shallow = dataclasses.replace(
        config,
        n_layers=min(config.n_layers, 2),
        n_decoder_layers=None if config.n_decoder_layers is None else min(config.n_decoder_layers, 2),
    )
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in on_meta(shallow).named_parameters():
        stack, _, rest = name.partition(".")
        times = 1
        if rest.startswith("layers.1."):  # the second stands for all that follow it
            times = deep[stack] - 1
        part = PARTS[2] if rest.startswith("layers.") else PARTS[1] if rest.startswith("position") else PARTS[0]
        counts[part] += parameter.numel() * times
    return counts


def on_meta(config: ModelConfig, vocab_size: int | None = None) -> Transformer:
    """The model of a config without memory.

    Raises:
        ConfigError: numbers that do not fit together, or that no tensor can have.
    """
    try:
        with torch.device("meta"):
            return build_model(config, vocab_size)
    except RuntimeError:
        raise ConfigError(
            f"model.d_model {config.d_model} and the sizes beside it are more than a tensor has"
        ) from None


def _is_small(config: ModelConfig, sizes: Mapping[str, int | None], deep: Mapping[str, int | None]) -> bool:
    """Whether a model is surely below SMALL, by a bound that is too large rather than too small."""
    wide = {name: value or 1 for name, value in sizes.items()}
    inner = max(wide["d_ff"], 4 * wide["d_model"], wide["n_heads"] * (config.d_head or wide["d_model"]))
    layers = 2 * sum(value or 0 for value in deep.values())
    rows = sum(value for name, value in wide.items() if name not in ("d_model", "d_ff", "d_head"))
    return BYTES * inner * (wide["d_model"] * 16 * (layers + 1) + 4 * rows) < SMALL


def check_weights(weights: Mapping[str, Tensor], config: ModelConfig, vocab_size: int) -> None:
    """See that weights are those of a config, before its model is made.

    Args:
        weights: by name, as model.load_state_dict takes them.
        config: of the model.
        vocab_size: where the config leaves it open.

    Raises:
        ConfigError: sizes that the weights cannot have, a weight too many, too few, of another shape or kind, or one
            that is not finite.
    """
    total = sum(tensor.numel() for tensor in weights.values())
    sizes = _sizes(config)
    sizes["vocab_size"] = vocab_size if config.vocab_size is None else config.vocab_size
    deep = {name: getattr(config, name) for name in ("n_layers", "n_decoder_layers")}
    for values, most in ((sizes, total), (deep, len(weights))):
        for name, value in values.items():
            if isinstance(value, int) and value > most:
                told = f"there are {len(weights)} weights of {total:,} numbers"
                raise ConfigError(f"its config says model.{name} {value}, but {told}")
    # Torch loads its compiler, a second's work, for what it makes without memory: not for a model that is small anyway.
    model = build_model(config, vocab_size) if _is_small(config, sizes, deep) else on_meta(config, vocab_size)
    needed = sum(parameter.numel() for parameter in model.parameters())
    own = sum({tensor.data_ptr(): tensor.numel() for tensor in weights.values()}.values())
    if own < needed <= total:
        raise ConfigError(f"its config says {needed:,} weights, but there are {own:,}, several times over")
    expected = model.state_dict()
    for name in [*expected, *weights]:
        if name not in weights or name not in expected:
            raise ConfigError(f"the weights {'lack' if name in expected else 'have a stranger,'} {name[:100]!r}")
        shape, found = [*expected[name].shape], [*weights[name].shape]
        if shape != found:
            raise ConfigError(f"the weights {name!r} must have the shape {shape} by the config, got {found}")
        if not weights[name].is_floating_point():
            raise ConfigError(f"the weights {name!r} must be fractions, got {weights[name].dtype}")
        if bad := int((~weights[name].isfinite()).sum()):
            raise ConfigError(f"the weights {name!r} must be finite, got {bad} of {weights[name].numel()} that are not")
