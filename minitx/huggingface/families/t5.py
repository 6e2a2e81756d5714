"""T5 (Raffel et al. 2020) and T5 1.1: relative positions in buckets, RMS norms, no biases.

T5 does not divide its scores by sqrt(d_head); minitx does, and its queries compensate. The T5 of 2019 multiplies the
input of its tied head by 1 / sqrt(d_model): minitx stores W / sqrt(d_model) and scales embeddings. T5 1.1 is untied.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import UNCHANGED, Conversion, Family, in_layers, scaled

_FFN = {"gate": "wi_0", "up": "wi_1", "down": "wo"}


def _stack(name: str, **parts: tuple[str, str]) -> dict[str, str]:
    """The modules of a stack; parts are its attentions: the name of their norm, and their Hugging Face name."""
    # The first layer has the table of buckets, which all layers share.
    table = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias"
    modules = {f"ffn.{part}_proj": f"layer.{len(parts)}.DenseReluDense.{hf}" for part, hf in _FFN.items()}
    modules["add_norm_ffn.norm"] = f"layer.{len(parts)}.layer_norm"
    for i, (part, (norm, hf)) in enumerate(parts.items()):
        modules |= {f"{part}.{letter}_proj": f"layer.{i}.{hf}.{letter}" for letter in "qkvo"}
        modules[f"{norm}.norm"] = f"layer.{i}.layer_norm"
    ends = {f"{name}.position.table": table, f"{name}.norm": f"{name}.final_layer_norm"}
    return ends | in_layers(f"{name}.layers", f"{name}.block", modules)


class T5(Family):
    """T5ForConditionalGeneration."""

    model_type, model, base = "t5", "T5ForConditionalGeneration", ""
    task, length, activation = "imported_pairs", ("n_positions", 512), ("feed_forward_proj", "relu")
    defaults: ClassVar = {
        "d_model": 512, "num_heads": 8, "num_layers": 6, "num_decoder_layers": None, "d_kv": 64, "d_ff": 2048,
        "layer_norm_epsilon": 1e-6, "dropout_rate": 0.1,
    }  # fmt: skip
    fixed: ClassVar = {"architecture": "encoder_decoder", "norm": "rmsnorm", "bias": False, "qkv_bias": False}
    position, divisible = "t5", False
    handled = frozenset({"tie_embeddings", "scale_embeddings"})
    activations: ClassVar = {**Family.activations, "gated-gelu": "geglu_tanh", "gated-silu": "swiglu"}
    modules: ClassVar = {
        "embedding.table": "shared", "head": "lm_head",
        **_stack("encoder", self_attn=("add_norm_attn", "SelfAttention")),
        **_stack(
            "decoder", self_attn=("add_norm_self", "SelfAttention"), cross_attn=("add_norm_cross", "EncDecAttention")
        ),
    }  # fmt: skip
    ignored = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"  # never used
    copies: ClassVar = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")}

    def _position(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        buckets = hf.get("relative_attention_num_buckets", 32)
        return {"name": "t5", "buckets": buckets, "max_distance": hf.get("relative_attention_max_distance", 128)}

    def _unsupported_position(self, position: Mapping[str, Any]) -> list[str]:
        return ["model.position.bidirectional true"] if position.get("bidirectional") else []

    def _extra_settings(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        # An untied head is found in the weights.
        return {"scale_embeddings": hf.get("scale_decoder_outputs", hf.get("tie_word_embeddings", True)) is not False}

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "relative_attention_num_buckets": config.position.get("buckets", 32),
            "relative_attention_max_distance": config.position.get("max_distance", 128),
            "scale_decoder_outputs": config.scale_embeddings, "is_encoder_decoder": True,
            "decoder_layers": config.n_decoder_layers,  # for the cache of transformers, which otherwise has n_layers
        }  # fmt: skip

    def hf_name(self, name: str, config: ModelConfig) -> str:
        """The Hugging Face name of a weight; wi_1 is wi without a gate."""
        gated, found = config.activation in ("geglu_tanh", "swiglu"), super().hf_name(name, config)
        return found if gated else found.replace(".wi_1.", ".wi.")

    def _conversion(self, name: str, config: ModelConfig) -> Conversion:
        if name.endswith("q_proj.weight"):
            return scaled(math.sqrt(config.d_head or 0))  # resolved
        if name in ("embedding.table.weight", "head.weight") and config.scale_embeddings:
            return scaled(1.0 / math.sqrt(config.d_model))
        return UNCHANGED
