"""BART (Lewis et al. 2020) and Marian (Junczys-Dowmunt et al. 2018): post-norm encoder-decoders with a head bias.

BART has learned positions, in a table with two unused first rows, and normed embeddings; Marian sines before cosines.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch.nn.functional import pad

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import UNCHANGED, Conversion, Family, in_layers

UNUSED_ROWS = 2  # first rows of BART's tables of positions
_LAYER = {
    "self_attn": "self_attn", "self_attn.o_proj": "self_attn.out_proj",
    "ffn.up_proj": "fc1", "ffn.down_proj": "fc2", "add_norm_ffn.norm": "final_layer_norm",
}  # fmt: skip
_CROSS = {
    "cross_attn": "encoder_attn", "cross_attn.o_proj": "encoder_attn.out_proj",
    "add_norm_cross.norm": "encoder_attn_layer_norm",
}  # fmt: skip


def _stack(name: str, layer: dict[str, str]) -> dict[str, str]:
    """The modules of a stack; position table and norm of the embeddings are BART's alone."""
    ends = {"position.table": "embed_positions", "embedding_norm": "layernorm_embedding"}
    layers = in_layers(f"{name}.layers", f"model.{name}.layers", layer)
    return {f"{name}.{module}": f"model.{name}.{hf_module}" for module, hf_module in ends.items()} | layers


class Bart(Family):
    """BartForConditionalGeneration."""

    model_type, model, base = "bart", "BartForConditionalGeneration", "model."
    task, length, activation = "imported_pairs", ("max_position_embeddings", 1024), ("activation_function", "gelu")
    defaults: ClassVar = {
        "d_model": 1024, "encoder_attention_heads": 16, "encoder_layers": 12, "decoder_layers": 12,
        "encoder_ffn_dim": 4096, "scale_embedding": False, "tie_word_embeddings": True, "dropout": 0.1,
        "attention_dropout": 0.0,
    }  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        "architecture": "encoder_decoder", "norm_first": False, "norm_eps": 1e-5, "head_bias": True,
        "embedding_norm": True,
    }  # fmt: skip
    required: ClassVar = {"normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": True}
    activations: ClassVar = {"swish": "silu", **Family.activations}
    modules: ClassVar = {
        "embedding.table": "model.shared", "head": "lm_head", "head.bias": "final_logits_bias",
        **_stack("encoder", _LAYER | {"add_norm_attn.norm": "self_attn_layer_norm"}),
        **_stack("decoder", _LAYER | _CROSS | {"add_norm_self.norm": "self_attn_layer_norm"}),
    }  # fmt: skip
    copies: ClassVar = {f"model.{stack}.embed_tokens.weight": "model.shared.weight" for stack in ("encoder", "decoder")}
    zeros = frozenset({"final_logits_bias"})
    ignored = r"(en|de)coder\.version"

    def _extra_settings(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        for key, default in (("attention_heads", 16), ("ffn_dim", 4096)):
            encoder, decoder = (hf.get(f"{stack}_{key}", default) for stack in ("encoder", "decoder"))
            if encoder != decoder:
                raise ConfigError(f"encoder_{key} {encoder} and decoder_{key} {decoder} must be equal in minitx")
        return {}

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "decoder_attention_heads": config.n_heads, "decoder_ffn_dim": config.d_ff, "is_encoder_decoder": True,
            "activation_dropout": config.dropout,
        }  # fmt: skip

    def _conversion(self, name: str, config: ModelConfig) -> Conversion:
        if name == "head.bias":
            return Conversion(lambda bias, _: [bias[0]], lambda parts: parts[0][None])
        if name.endswith("position.table.weight"):
            return Conversion(
                lambda table, _: [table[UNUSED_ROWS:]], lambda parts: pad(parts[0], (0, 0, UNUSED_ROWS, 0))
            )
        return UNCHANGED


class Marian(Bart):
    """MarianMTModel."""

    model_type, model = "marian", "MarianMTModel"
    fixed: ClassVar = {**Bart.fixed, "embedding_norm": False}
    position = "sinusoidal"
    required: ClassVar = {
        "normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": False,
        "share_encoder_decoder_embeddings": True, "static_position_embeddings": True,
    }  # fmt: skip
    ignored = Bart.ignored + r"|(en|de)coder\.embed_positions\.weight"

    def _position(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": "sinusoidal", "halves": True}

    def _unsupported_position(self, position: Mapping[str, Any]) -> list[str]:
        base = position.get("base", 10000.0)
        wrong = [] if position.get("halves") else ["model.position.halves false"]
        return wrong + ([] if base == 10000.0 else [f"model.position.base {base}"])
