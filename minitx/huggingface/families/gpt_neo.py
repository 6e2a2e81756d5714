"""GPT-Neo (Black et al. 2021), the family of TinyStories: GPT-2 with a window in some layers, unscaled scores.

minitx divides scores by sqrt(d_head), and its queries compensate.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import UNCHANGED, Conversion, in_layers, scaled
from minitx.huggingface.families.gpt2 import GPT2
from minitx.huggingface.families.layer_types import check_depth, layer_types, pattern, window_size

KINDS = ("global", "local")


class GPTNeo(GPT2):
    """GPTNeoForCausalLM."""

    model_type, model, length = "gpt_neo", "GPTNeoForCausalLM", ("max_position_embeddings", 2048)
    defaults: ClassVar = {
        "hidden_size": 2048, "num_heads": 16, "num_layers": 24, "intermediate_size": None,
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "resid_dropout": 0.0, "attention_dropout": 0.0,
    }  # fmt: skip
    fixed = GPT2.fixed | {"qkv_bias": False}
    handled = frozenset({"window"})
    required: ClassVar = {}
    modules = GPT2.modules | in_layers("decoder.layers", "transformer.h", {
        **{f"self_attn.{part}_proj": f"attn.attention.{part}_proj" for part in "qkv"},
        "self_attn.o_proj": "attn.attention.out_proj",
    })  # fmt: skip
    ignored = r"h\.\d+\.attn\.attention\.(masked_)?bias"  # the causal mask

    def _extra_settings(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        types, count = hf.get("attention_types") or [[list(KINDS), 12]], check_depth(hf.get("num_layers", 24))
        if sum(len(kinds) * max(times, 0) for kinds, times in types) != count:
            raise ConfigError(f"attention_types must have the kind of each of {count} layers, got {types!s:.200}")
        kinds = [kind for kinds, times in types for kind in kinds * times]
        return {"window": pattern(kinds, count, hf.get("window_size", 256), KINDS)}

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "attention_types": [[layer_types(config, KINDS), 1]], "window_size": window_size(config) or 256,
            "embed_dropout": config.dropout,
        }  # fmt: skip

    def _conversion(self, name: str, config: ModelConfig) -> Conversion:
        return scaled(math.sqrt(config.d_head or 0)) if name.endswith("q_proj.weight") else UNCHANGED  # resolved
