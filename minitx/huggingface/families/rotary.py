"""Base of families with rotary positions.

minitx and Hugging Face rotate the same pairs (j, j + R / 2) of each head, so rows of q and k keep their order.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family

OPTIONS: dict[str, dict[str, tuple[str, Any]]] = {
    "default": {},
    "linear": {"factor": ("factor", 1.0)},
    "llama3": {
        "factor": ("factor", 1.0), "low_freq_factor": ("low_freq_factor", 1.0),
        "high_freq_factor": ("high_freq_factor", 4.0), "original_max_position_embeddings": ("original_max_len", 8192),
    },
}  # fmt: skip
"""Options of each scaling, Hugging Face to minitx, with the defaults of minitx, whose name for `default` is `none`."""


class Rotary(Family):
    """A family with rotary positions."""

    position = "rope"
    base_key: ClassVar[tuple[str, float]] = ("rope_theta", 10000.0)  # older names of two options, their defaults
    fraction_key: ClassVar[tuple[str, float]] = ("partial_rotary_factor", 1.0)
    partial: ClassVar[bool] = False  # whether a part of each head may be rotated
    ignored = r".*rotary_emb\.inv_freq"

    def _position(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        # Versions of transformers differ in where they store these options; the older name comes first.
        return self._rope(hf.get("rope_scaling") or hf.get("rope_parameters") or {}, hf)

    def _rope(self, options: Mapping[str, Any], hf: Mapping[str, Any]) -> dict[str, Any]:
        """model.position of rope_parameters; hf may have base and fraction instead."""
        if any(isinstance(value, dict) for value in options.values()):
            raise ConfigError(f"rope_parameters for each type of layer are not supported in {self.model_type}")
        kind = options.get("rope_type", options.get("type", "default"))
        if kind not in OPTIONS:
            raise ConfigError(f"rope_scaling of type {kind} is not supported; minitx imports {', '.join(OPTIONS)}")
        fraction = options.get("partial_rotary_factor", hf.get(*self.fraction_key))
        if fraction != 1.0 and not self.partial:
            raise ConfigError(f"partial_rotary_factor {fraction} is not supported; minitx imports 1.0")
        position = {"name": "rope", "base": float(options.get("rope_theta", hf.get(*self.base_key)))}
        position |= {} if fraction == 1.0 else {"fraction": fraction}
        if kind == "default":
            return position
        key = "original_max_position_embeddings"  # transformers uses the maximum length if a file omits it
        options = {key: hf.get(key, hf.get(*self.length)), **options}
        if missing := [key for key in OPTIONS[kind] if options.get(key) is None]:
            raise ConfigError(f"rope_scaling of type {kind} needs {', '.join(missing)}")
        return position | {"scaling": kind} | {name: options[key] for key, (name, _) in OPTIONS[kind].items()}

    def _unsupported_position(self, position: Mapping[str, Any]) -> list[str]:
        scaling, fraction = position.get("scaling", "none"), position.get("fraction", 1.0)
        wrong = [] if scaling in {"none", *OPTIONS} else [f"model.position.scaling {scaling}"]
        return wrong + ([] if fraction == 1.0 or self.partial else [f"model.position.fraction {fraction}"])

    def _rope_parameters(self, position: Mapping[str, Any]) -> dict[str, Any]:
        """rope_parameters of model.position."""
        kind = position.get("scaling", "none").replace("none", "default")
        partial = {"partial_rotary_factor": position.get("fraction", 1.0)} if self.partial else {}
        options = {"rope_type": kind, "rope_theta": position.get("base", 10000.0), **partial}
        return options | {key: position.get(name, default) for key, (name, default) in OPTIONS[kind].items()}

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        position, fraction = config.position, config.position.get("fraction", 1.0)
        assert config.d_head is not None
        size = int(round(config.d_head * fraction, 6))
        if int(config.d_head * fraction) < size:  # transformers rounds down, and 100 * 0.58 is less than 58
            position = position | {"fraction": math.nextafter(size / config.d_head, 1.0)}
        parameters = self._rope_parameters(position)
        # transformers 4 reads these older names alone, and 5 before 5.5 that of GPT-NeoX's fraction.
        names = {"rope_theta": self.base_key[0], "partial_rotary_factor": self.fraction_key[0]}
        older = {name: parameters[key] for key, name in names.items() if key in parameters}
        scaling = None if parameters["rope_type"] == "default" else parameters
        return {"rope_parameters": parameters, "rope_scaling": scaling, **older}
