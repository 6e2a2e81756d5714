"""Qwen2 (Yang et al. 2024): biases of queries, keys and values; Qwen3 (Yang et al. 2025): norms of queries and keys."""

from collections.abc import Mapping
from typing import Any, ClassVar

from minitx.config.schema import ModelConfig
from minitx.huggingface.families.layer_types import FULL, SLIDING, check_depth, layer_types, pattern, window_size
from minitx.huggingface.families.llama import Llama


class Qwen2(Llama):
    """Qwen2ForCausalLM."""

    divisible = False
    model_type, model, length = "qwen2", "Qwen2ForCausalLM", ("max_position_embeddings", 32768)
    defaults = Llama.defaults | {"num_key_value_heads": 32, "intermediate_size": 22016}
    fixed = Llama.fixed | {"qkv_bias": True}
    handled = frozenset({"window"})
    required: ClassVar = {}

    def _extra_settings(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        window = hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None
        if not window:
            return {"window": None}
        count = check_depth(hf.get("num_hidden_layers", 32))
        default = [FULL if layer < hf.get("max_window_layers", 28) else SLIDING for layer in range(count)]
        return {"window": pattern(hf.get("layer_types") or default, count, window)}

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        kinds, window = layer_types(config), window_size(config)
        return super()._extra_hf(config) | {
            "use_sliding_window": window is not None, "sliding_window": window, "layer_types": kinds,
            "max_window_layers": kinds.index(SLIDING) if window else config.n_layers,
        }  # fmt: skip


class Qwen3(Qwen2):
    """Qwen3ForCausalLM."""

    model_type, model = "qwen3", "Qwen3ForCausalLM"
    defaults = Qwen2.defaults | {"head_dim": 128}
    fixed = Qwen2.fixed | {"qkv_bias": False, "qk_norm": True}
    required: ClassVar = {"attention_bias": False}
