"""minitx: a mini-transformer framework: read it in an evening, train it in a minute, inspect its attention.

The names below are the public interface. Each is imported when it is first used, so that modules without torch
(minitx.tensorboard, minitx.config.schema) can be imported without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitx.config.schema import Config, ModelConfig
    from minitx.inference.predictor import Predictor, load
    from minitx.interpret.attention_maps import AttentionMaps
    from minitx.interpret.intervene import at, head_mask, intervene, mean_activations
    from minitx.interpret.recording import record_attention
    from minitx.interpret.trace import trace
    from minitx.models.builder import build_model
    from minitx.models.transformers import DecoderOnly, EncoderDecoder, EncoderOnly
    from minitx.plotting.history import Curves, curves
    from minitx.training.api import train

__version__ = "0.1.0"

_NAMES = {
    "config.schema": "Config ModelConfig",
    "inference.predictor": "Predictor load",
    "interpret.attention_maps": "AttentionMaps",
    "interpret.intervene": "at head_mask intervene mean_activations",
    "interpret.recording": "record_attention",
    "interpret.trace": "trace",
    "models.builder": "build_model",
    "models.transformers": "DecoderOnly EncoderDecoder EncoderOnly",
    "plotting.history": "Curves curves",
    "training.api": "train",
}
_MODULES = {name: f"minitx.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AttentionMaps", "Config", "Curves", "DecoderOnly", "EncoderDecoder", "EncoderOnly", "ModelConfig", "Predictor",
    "at", "build_model", "curves", "head_mask", "intervene", "load", "mean_activations", "record_attention", "trace",
    "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'minitx' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
