"""The model of a config with the weights of a checkpoint, checked before it is built: a file may be hostile."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from minitx.config.errors import ConfigError, first_line
from minitx.config.schema import ModelConfig
from minitx.models.builder import build_model, resolved_positions
from minitx.models.transformers import Transformer

MAX_RANGE = 2**20  # largest argument of a torch.arange that is computed while weights are not
SIZES = (
    "vocab_size", "position.max_len", "position.buckets", "position.hidden", "d_model", "d_ff", "d_head", "n_heads",
    "n_decoder_layers", "n_layers",
)  # fmt: skip
"""Keys of `model` that determine the number of weights."""


def load_model(config: ModelConfig, weights: Mapping[str, Tensor], vocab_size: int) -> Transformer:
    """Build the model of a config with weights by name, as in its state_dict; vocab_size is for a config without one.

    Raises:
        ConfigError: a config that needs more weights than there are; a weight that is missing, unknown, not finite,
            not floating point, or of another shape.
    """
    config = resolved_positions(dataclasses.replace(config, vocab_size=config.vocab_size or vocab_size))
    check_stored(config, weights)
    with _Uninitialized():  # a third of the time to load a large model; all weights are replaced below
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


def check_stored(config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
    """Refuse a config that needs more than twice the numbers of a file; if fewer are missing, load_model names them."""
    stored = sum({tensor.data_ptr(): tensor.numel() for tensor in weights.values()}.values())  # shared ones once
    # Each layer has a tensor and each head has numbers, so a model with more of them is not even counted.
    countable = max(config.n_layers, config.decoder_layers) <= len(weights) and config.n_heads <= stored
    needed = sum(part.numel() for part in on_meta(config).parameters()) if countable else 2 * stored + 1
    if needed > 2 * stored:
        values = dataclasses.asdict(config) | {f"position.{name}": value for name, value in config.position.items()}
        sizes = ", ".join(f"model.{name} {values[name]}" for name in SIZES if values.get(name) is not None)
        raise ConfigError(f"the config needs more numbers ({sizes}) than the {stored:,} that are stored")


def on_meta(config: ModelConfig) -> Transformer:
    """The model of a config on torch's meta device.

    Raises:
        ConfigError: sizes that contradict each other, or that no tensor can have.
    """
    try:
        with _Uninitialized(meta=True):
            return build_model(config)
    except RuntimeError as error:
        sizes = f"model.d_model {config.d_model} and the other sizes exceed those of a tensor"
        raise ConfigError(f"{sizes} ({first_line(error)})") from None


class _Uninitialized(TorchFunctionMode):
    """Leaves new weights uninitialized, on the meta device if `meta`. Not all tensors are put there, as by
    torch.device("meta"): computing there imports torch's compiler, which takes a second."""

    def __init__(self, meta: bool = False) -> None:
        super().__init__()
        self.meta = meta

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or return the tensor to be initialized."""
        kwargs = kwargs or {}
        if function.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):
            return [*args, *kwargs.values()][0]
        large = function in (torch.empty, torch.zeros) or (function is torch.arange and max([0, *args]) > MAX_RANGE)
        return function(*args, **(kwargs | {"device": "meta"} if self.meta and large else kwargs))
