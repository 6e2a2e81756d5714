"""Gemma (2024), Gemma 2 and Gemma 3 (2025) without images; their norms multiply by 1 + weight, minitx stores the sum.

Gemma 2 and 3 divide scores by the root of a setting of their own, query_pre_attn_scalar: the weights compensate.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import UNCHANGED, Conversion, in_layers
from minitx.huggingface.families.layer_types import FULL, SLIDING, check_depth, layer_types, pattern, window_size
from minitx.huggingface.families.llama import Llama

PLUS_ONE = Conversion(lambda tensor, _: [1.0 + tensor], lambda parts: parts[0] - 1.0)


class Gemma(Llama):
    """GemmaForCausalLM."""

    model_type, model, length = "gemma", "GemmaForCausalLM", ("max_position_embeddings", 8192)
    activation = ("hidden_act", "gelu_pytorch_tanh")
    defaults = Llama.defaults | {
        "hidden_size": 3072, "num_attention_heads": 16, "head_dim": 256, "num_hidden_layers": 28,
        "num_key_value_heads": 16, "intermediate_size": 24576, "tie_word_embeddings": True,
    }  # fmt: skip
    fixed = Llama.fixed | {"scale_embeddings": True}
    required: ClassVar = {"attention_bias": False, "use_bidirectional_attention": None}
    activations: ClassVar = {"gelu": "geglu_tanh", "gelu_pytorch_tanh": "geglu_tanh"}  # gelu is an error in old files

    def _conversion(self, name: str, config: ModelConfig) -> Conversion:
        return PLUS_ONE if name.endswith("norm.weight") else UNCHANGED


class Gemma2(Gemma):
    """Gemma2ForCausalLM: norms before and after sublayers, soft caps, a window in every other layer."""

    model_type, model = "gemma2", "Gemma2ForCausalLM"
    activation = ("hidden_activation", "gelu_pytorch_tanh")
    defaults = Gemma.defaults | {
        "hidden_size": 2304, "num_attention_heads": 8, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_key_value_heads": 4, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    }  # fmt: skip
    fixed = Gemma.fixed | {"sandwich_norm": True}
    handled = frozenset({"window"})
    activations: ClassVar = {"gelu_pytorch_tanh": "geglu_tanh"}
    modules = Gemma.modules | in_layers("decoder.layers", "model.layers", {
        "add_norm_self.output_norm": "post_attention_layernorm", "add_norm_ffn.norm": "pre_feedforward_layernorm",
        "add_norm_ffn.output_norm": "post_feedforward_layernorm",
    })  # fmt: skip
    full_every: ClassVar[int] = 2  # layers
    query: ClassVar[str] = "q_proj.weight"  # the weight that compensates the divisor of scores

    def _extra_settings(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        count = check_depth(hf.get("num_hidden_layers", 26))
        every = hf.get("sliding_window_pattern", self.full_every)
        default = [SLIDING if (layer + 1) % every else FULL for layer in range(count)]
        return {"window": pattern(hf.get("layer_types") or default, count, hf.get("sliding_window", 4096))}

    def fold(self, hf: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
        """Scale queries by sqrt(d_head / query_pre_attn_scalar)."""
        divisor = hf.get("query_pre_attn_scalar", 256)
        if not isinstance(divisor, int | float) or not 1e-6 <= divisor <= 1e6:
            raise ConfigError(f"query_pre_attn_scalar must lie between 0.000001 and 1,000,000, got {divisor}")
        factor = math.sqrt(hf.get("head_dim", 256) / divisor)
        for name in [name for name in tensors if name.endswith(self.query)]:
            tensors[name] = tensors[name] * factor

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return super()._extra_hf(config) | {
            "sliding_window": window_size(config) or 4096,  # required even if no layer has a window
            "layer_types": layer_types(config),
            "query_pre_attn_scalar": config.d_head,
            # The default of transformers before 5.21 ignores the cap of scores.
            **({"attn_implementation": "eager"} if config.softcap else {}),
        }  # fmt: skip


class Gemma3(Gemma2):
    """Gemma3ForCausalLM: norms of queries and keys, and a rotation of its own for layers with a window."""

    model_type, model, length = "gemma3_text", "Gemma3ForCausalLM", ("max_position_embeddings", 131072)
    base_key = ("rope_theta", 1e6)
    defaults = Gemma2.defaults | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    fixed = Gemma2.fixed | {"qk_norm": True, "softcap": None}
    required = Gemma2.required | {"attn_logit_softcapping": None}
    handled = frozenset({"window", "window_position"})
    full_every = 6
    query = "q_norm.weight"

    def _position(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        return self._rope(((hf.get("rope_parameters") or {}).get(FULL) or {}) | (hf.get("rope_scaling") or {}), hf)

    def _extra_settings(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        local = (hf.get("rope_parameters") or {}).get(SLIDING) or {}
        options = {"rope_theta": hf.get("rope_local_base_freq", 10000.0), **local}
        return super()._extra_settings(hf) | {"window_position": self._rope(options, hf)}

    def _unsupported(self, config: ModelConfig) -> list[str]:
        local = self._unsupported_scheme(config.window_position) if config.window_position else []
        return super()._unsupported(config) + [each.replace("position", "window_position") for each in local]

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        parts = {FULL: config.position, SLIDING: config.window_position or config.position}
        return super()._extra_hf(config) | {
            "rope_parameters": {kind: self._rope_parameters(position) for kind, position in parts.items()},
            "rope_local_base_freq": parts[SLIDING].get("base", 10000.0),  # of transformers 4
        }
