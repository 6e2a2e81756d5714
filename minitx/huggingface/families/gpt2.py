"""GPT-2 (Radford et al. 2019): pre-norm, learned positions. GPT-Neo (Black et al. 2021), the family of TinyStories: a
window in some layers; minitx divides its unscaled scores by sqrt(d_head), and its queries compensate.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import UNCHANGED, Conversion, Family, in_layers, scaled
from minitx.huggingface.families.layer_types import check_depth, layer_types, pattern, window_size

NEO_KINDS = ("global", "local")
COLUMNS = Conversion(
    lambda tensor, count: [torch.t(part) for part in tensor.tensor_split(count, dim=-1)],
    lambda parts: torch.cat([torch.t(part) for part in parts], dim=-1),
)
"""Weights side by side, each stored as [in, out]; biases [out] are the same either way."""


class GPT2(Family):
    """GPT2LMHeadModel: q, k and v are one matrix, stored as [in, out]."""

    model_type, model, base = "gpt2", "GPT2LMHeadModel", "transformer."
    task, length, activation = "imported_text", ("n_positions", 1024), ("activation_function", "gelu_new")
    defaults: ClassVar = {
        "n_embd": 768, "n_head": 12, "n_layer": 12, "n_inner": None, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True, "resid_pdrop": 0.1, "attn_pdrop": 0.1,
    }  # fmt: skip
    fixed: ClassVar = {"architecture": "decoder_only", "scale_embeddings": False}
    required: ClassVar = {
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
    }  # fmt: skip
    modules: ClassVar = {
        "embedding.table": "transformer.wte", "decoder.position.table": "transformer.wpe",
        "decoder.norm": "transformer.ln_f", "head": "lm_head",
    } | in_layers("decoder.layers", "transformer.h", {
        "add_norm_self.norm": "ln_1", "add_norm_ffn.norm": "ln_2", "self_attn.q_proj": "attn.c_attn",
        "self_attn.k_proj": "attn.c_attn", "self_attn.v_proj": "attn.c_attn", "self_attn.o_proj": "attn.c_proj",
        "ffn.up_proj": "mlp.c_fc", "ffn.down_proj": "mlp.c_proj",
    })  # fmt: skip
    ignored = r"h\.\d+\.attn\.(masked_)?bias"  # the causal mask

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return {"embd_pdrop": config.dropout}

    def _conversion(self, name: str, config: ModelConfig) -> Conversion:
        return COLUMNS if "_proj." in name else UNCHANGED


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
        types, count = hf.get("attention_types") or [[list(NEO_KINDS), 12]], check_depth(hf.get("num_layers", 24))
        if sum(len(kinds) * max(times, 0) for kinds, times in types) != count:
            raise ConfigError(f"attention_types must have the kind of each of {count} layers, got {types!s:.200}")
        kinds = [kind for kinds, times in types for kind in kinds * times]
        return {"window": pattern(kinds, count, hf.get("window_size", 256), NEO_KINDS)}

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "attention_types": [[layer_types(config, NEO_KINDS), 1]], "window_size": window_size(config) or 256,
            "embed_dropout": config.dropout,
        }  # fmt: skip

    def _conversion(self, name: str, config: ModelConfig) -> Conversion:
        return scaled(math.sqrt(config.d_head or 0)) if name.endswith("q_proj.weight") else UNCHANGED  # resolved
