"""Size of a config's model, checked before it is built: a typo or a hostile file may ask for more memory than there is.

Parameters are counted on torch's meta device, where tensors have shapes and no memory.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from minitx.config.errors import ConfigError
from minitx.config.schema import Config, ModelConfig
from minitx.data.examples import positions
from minitx.data.tasks import Task
from minitx.models.builder import build_model, resolved_positions
from minitx.models.transformers import Transformer

GIB = 2**30
MAX_RANGE = 2**20
"""Numbers of a range that are computed while the others are counted."""
WEIGHT_BYTES = 4
"""fp32, in which weights are initialized."""
ACTIVATION_BYTES = 2
"""bf16 or fp16, the narrowest format of training."""
PARTS = {
    "embedding and head": ("vocab_size", "d_model"),
    "positions": ("position.name", "position.max_len", "position.buckets", "d_model", "n_heads"),
    "layers": ("n_layers", "n_decoder_layers", "d_model", "d_ff", "d_head", "n_heads"),
}
"""Parts of a model, and the keys of `model` that decide on their size."""


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
    for candidate in (dataclasses.replace(config, position={"name": "none"}), config):
        counts = parameters(candidate)
        needed = WEIGHT_BYTES * sum(counts.values())
        if needed > available:
            keys = _values(config, PARTS[max(counts, key=counts.__getitem__)])
            raise ConfigError(
                f"{keys} would make {needed / GIB:,.0f} GiB of weights, and this machine has "
                f"{available / GIB:,.1f} GiB of memory: make one of them smaller"
            )


def _values(config: ModelConfig, keys: Iterable[str]) -> str:
    """The keys that have a value, with it."""
    values = dataclasses.asdict(config) | {f"position.{name}": value for name, value in config.position.items()}
    return ", ".join(f"model.{key} {values[key]}" for key in keys if values.get(key) is not None)


def check_batch(task: Task, config: Config) -> None:
    """Refuse a batch whose activations exceed the memory of this machine and of its GPU, with a ConfigError.

    For the backward, each layer keeps at least its input, the input's norm, the queries and the attended values.
    """
    available, model = memory_bytes(), config.model
    if available is not None and torch.cuda.is_available():
        available = max(available, torch.cuda.get_device_properties(0).total_memory)
    tokens = positions(model.architecture, task.longest)
    kept = min(model.n_layers, model.decoder_layers) * (1 if config.trainer.recompute_activations else 4)
    needed = task.batch_size * tokens * kept * model.d_model * ACTIVATION_BYTES
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


def on_meta(config: ModelConfig) -> Transformer:
    """The model of a config on torch's meta device.

    Raises:
        ConfigError: sizes that contradict each other, or that no tensor can have.
    """
    try:
        with _Shapes():
            return build_model(config)
    except RuntimeError:
        raise ConfigError(f"model.d_model {config.d_model} and the other sizes exceed those of a tensor") from None


def check_stored(config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
    """Refuse a config that needs more than twice the numbers of a file; where fewer lack, they can be named."""
    stored = sum({tensor.data_ptr(): tensor.numel() for tensor in weights.values()}.values())  # shared ones once
    # Position schemes may build lists with an entry per head, and each head has numbers of its own.
    needed = config.n_heads if config.n_heads > stored else sum(parameters(config).values())
    if needed > 2 * stored:
        sizes = _values(config, dict.fromkeys(key for keys in PARTS.values() for key in keys))
        raise ConfigError(f"its config needs at least {needed:,} numbers ({sizes}), but there are {stored:,}")


class _Shapes(TorchFunctionMode):
    """Puts new weights on the meta device, and leaves them uninitialized.

    Not all tensors, as torch.device("meta") does: computing there imports torch's compiler, which takes a second.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or return the tensor to be initialized."""
        kwargs = kwargs or {}
        if function.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):
            return [*args, *kwargs.values()][0]
        if function in (torch.empty, torch.zeros) or (function is torch.arange and len(range(*args)) > MAX_RANGE):
            kwargs = {**kwargs, "device": "meta"}
        return function(*args, **kwargs)


def load_model(config: ModelConfig, weights: Mapping[str, Tensor], vocab_size: int) -> Transformer:
    """Build the model of a config with the weights of a checkpoint.

    Args:
        config: of the model.
        weights: by name, as in the model's state_dict.
        vocab_size: for a config without one.

    Raises:
        ConfigError: a config that needs more weights than there are; a weight that is missing, unknown, not finite,
            not floating point, or of another shape.
    """
    config = resolved_positions(dataclasses.replace(config, vocab_size=config.vocab_size or vocab_size))
    check_stored(config, weights)
    model = build_model(config)
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
    model.load_state_dict(weights)
    return model
