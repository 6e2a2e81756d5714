"""minitx: a mini-transformer framework to read in an evening, train in a minute, and look inside.

The names below are the public interface. They are imported when first used, so that importing a part that needs no
torch (minitx.tensorboard, minitx.config) loads none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitx.config import Config, ModelConfig
    from minitx.history import Curves, curves
    from minitx.inspection.maps import AttentionMaps
    from minitx.inspection.recording import head_mask, record_attention
    from minitx.models import DecoderOnly, EncoderDecoder, EncoderOnly, build_model
    from minitx.predictor import Predictor, load
    from minitx.training.api import train

__version__ = "0.1.0"

_HOMES = {
    "AttentionMaps": "minitx.inspection.maps",
    "Config": "minitx.config",
    "Curves": "minitx.history",
    "DecoderOnly": "minitx.models",
    "EncoderDecoder": "minitx.models",
    "EncoderOnly": "minitx.models",
    "ModelConfig": "minitx.config",
    "Predictor": "minitx.predictor",
    "build_model": "minitx.models",
    "curves": "minitx.history",
    "head_mask": "minitx.inspection.recording",
    "load": "minitx.predictor",
    "record_attention": "minitx.inspection.recording",
    "train": "minitx.training.api",
}

__all__ = [
    "AttentionMaps",
    "Config",
    "Curves",
    "DecoderOnly",
    "EncoderDecoder",
    "EncoderOnly",
    "ModelConfig",
    "Predictor",
    "build_model",
    "curves",
    "head_mask",
    "load",
    "record_attention",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'minitx' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
