"""BART (Lewis et al. 2020) and Marian (Junczys-Dowmunt et al. 2018): post-norm encoder-decoders with a head bias.

BART has learned positions, in a table with two unused first rows, and a norm of the embeddings; Marian has sinusoids,
all sines before all cosines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch.nn.functional import pad

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, Key, register
from minitx.huggingface.links import Link, layers, module, single

UNUSED_ROWS = 2
"""First rows of BART's tables of positions."""


class _Seq2Seq(Family):
    """Settings and weights of both."""

    base, task, length = "model.", "imported_pairs", Key("max_position_embeddings", 1024)
    keys: ClassVar = {
        "d_model": Key("d_model", 1024),
        "encoder_attention_heads": Key("n_heads", 16),
        "encoder_layers": Key("n_layers", 12),
        "decoder_layers": Key("n_decoder_layers", 12),
        "encoder_ffn_dim": Key("d_ff", 4096),
        "scale_embedding": Key("scale_embeddings", False),
        "dropout": Key("dropout", 0.1),
        "attention_dropout": Key("attention_dropout", 0.0),
        "tie_word_embeddings": Key("tie_embeddings", True),
    }
    fixed: ClassVar = {"architecture": "encoder_decoder", "norm_first": False, "norm_eps": 1e-5, "head_bias": True}
    activations: ClassVar = {
        "gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "swish": "silu", "silu": "silu",
    }  # fmt: skip
    activation_key = Key("activation_function", "gelu")
    table = "model.shared.weight"
    copies: ClassVar = {f"model.{stack}.embed_tokens.weight": "model.shared.weight" for stack in ("encoder", "decoder")}
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

    def _links(self, config: ModelConfig) -> Iterator[Link]:
        yield from super()._links(config)
        yield single("head.bias", "final_logits_bias", lambda bias: bias[0], lambda bias: bias[None])
        shared = {f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"}
        shared |= {
            "self_attn.o_proj": "self_attn.out_proj", "ffn.up_proj": "fc1", "ffn.down_proj": "fc2",
            "add_norm_ffn.norm": "final_layer_norm",
        }  # fmt: skip
        encoder = shared | {"add_norm_attn.norm": "self_attn_layer_norm"}
        decoder = shared | {f"cross_attn.{part}_proj": f"encoder_attn.{part}_proj" for part in "qkv"}
        decoder |= {
            "cross_attn.o_proj": "encoder_attn.out_proj", "add_norm_cross.norm": "encoder_attn_layer_norm",
            "add_norm_self.norm": "self_attn_layer_norm",
        }  # fmt: skip
        yield from layers(config.n_layers, "encoder.layers", "model.encoder.layers", encoder)
        yield from layers(config.n_decoder_layers, "decoder.layers", "model.decoder.layers", decoder)


@register
class Bart(_Seq2Seq):
    """BartForConditionalGeneration."""

    model_type, model = "bart", "BartForConditionalGeneration"
    fixed: ClassVar = _Seq2Seq.fixed | {"embedding_norm": True}
    position = "learned"
    required: ClassVar = {"normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": True}

    def _links(self, config: ModelConfig) -> Iterator[Link]:
        yield from super()._links(config)
        for stack in ("encoder", "decoder"):
            yield single(
                f"{stack}.position.table.weight",
                f"model.{stack}.embed_positions.weight",
                lambda table: table[UNUSED_ROWS:],
                lambda table: pad(table, (0, 0, UNUSED_ROWS, 0)),
            )
            yield from module(f"{stack}.embedding_norm", f"model.{stack}.layernorm_embedding")


@register
class Marian(_Seq2Seq):
    """MarianMTModel."""

    model_type, model = "marian", "MarianMTModel"
    position = "sinusoidal"
    required: ClassVar = {
        "normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": False,
        "share_encoder_decoder_embeddings": True, "static_position_embeddings": True,
    }  # fmt: skip
    ignored = _Seq2Seq.ignored + r"|(en|de)coder\.embed_positions\.weight"

    def _position(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": "sinusoidal", "halves": True}

    def _unsupported_position(self, position: Mapping[str, Any]) -> list[str]:
        base = position.get("base", 10000.0)
        wrong = [] if position.get("halves") else ["model.position.halves false"]
        return wrong + ([] if base == 10000.0 else [f"model.position.base {base}"])
