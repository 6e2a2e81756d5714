"""BART (Lewis et al. 2020) and Marian (Junczys-Dowmunt et al. 2018): post-norm encoder-decoders, a bias for each token.

BART has learned positions, whose table begins with two rows that are not used, and a norm of the embeddings; Marian has
sinusoids, all sines before all cosines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, Key, register, resolved
from minitx.huggingface.links import Link, behind, module, modules

UNUSED = 2
"""Rows in front of BART's tables of positions."""


class _Seq2Seq(Family):
    """What both have."""

    base, task, length = "model.", "imported_pairs", "max_position_embeddings"
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
    activation_key = ("activation_function", "gelu")
    table = "model.shared.weight"
    copies: ClassVar = {f"model.{stack}.embed_tokens.weight": "model.shared.weight" for stack in ("encoder", "decoder")}
    ignored = r"(en|de)coder\.version"

    def more_of_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Both stacks must be alike but for their number of layers."""
        for key, default in (("attention_heads", 16), ("ffn_dim", 4096)):
            sizes = [theirs.get(f"{stack}_{key}", default) for stack in ("encoder", "decoder")]
            if sizes[0] != sizes[1]:
                raise ConfigError(f"encoder_{key} {sizes[0]} and decoder_{key} {sizes[1]} must be equal here")
        return {}

    def more_of_theirs(self, config: ModelConfig) -> dict[str, Any]:
        """The decoder's sizes."""
        return {
            "decoder_attention_heads": config.n_heads, "decoder_ffn_dim": config.d_ff, "is_encoder_decoder": True,
            "activation_dropout": config.dropout,
        }  # fmt: skip

    def links(self, config: ModelConfig) -> Iterator[Link]:
        """All weights but those of positions and of the embeddings' norms."""
        config = resolved(config)
        yield from self.ends(config)
        yield Link(("head.bias",), ("final_logits_bias",), _first_row, _as_row)
        shared = {f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"}
        shared |= {
            "self_attn.o_proj": "self_attn.out_proj", "ffn.up_proj": "fc1", "ffn.down_proj": "fc2",
            "add_norm_ffn.norm": "final_layer_norm",
        }  # fmt: skip
        cross = {f"cross_attn.{part}_proj": f"encoder_attn.{part}_proj" for part in "qkv"}
        cross |= {"cross_attn.o_proj": "encoder_attn.out_proj", "add_norm_cross.norm": "encoder_attn_layer_norm"}
        encoder = shared | {"add_norm_attn.norm": "self_attn_layer_norm"}
        decoder = shared | cross | {"add_norm_self.norm": "self_attn_layer_norm"}
        for i in range(config.n_layers):
            yield from modules(f"encoder.layers.{i}", f"model.encoder.layers.{i}", encoder)
        for i in range(config.n_decoder_layers or config.n_layers):
            yield from modules(f"decoder.layers.{i}", f"model.decoder.layers.{i}", decoder)


@register
class Bart(_Seq2Seq):
    """BartForConditionalGeneration."""

    model_type, model = "bart", "BartForConditionalGeneration"
    fixed: ClassVar = _Seq2Seq.fixed | {"embedding_norm": True}
    position = "learned"
    required: ClassVar = {"normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": True}

    def more_of_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """The table of positions."""
        position = {"name": "learned", "max_len": theirs.get("max_position_embeddings", 1024)}
        return super().more_of_ours(theirs) | {"position": position}

    def links(self, config: ModelConfig) -> Iterator[Link]:
        """All weights."""
        yield from super().links(config)
        for stack in ("encoder", "decoder"):
            table = f"model.{stack}.embed_positions.weight"
            yield behind(f"{stack}.position.table.weight", table, UNUSED)
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

    def more_of_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """The waves."""
        return super().more_of_ours(theirs) | {"position": {"name": "sinusoidal", "halves": True}}

    def more_wrong(self, config: ModelConfig) -> list[str]:
        """Positions."""
        own = config.position
        wrong = [] if own.get("halves") else ["model.position.halves false"]
        return wrong + ([] if own.get("base", 10000.0) == 10000.0 else [f"model.position.base {own['base']}"])


def _first_row(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    return [parts[0][0]]


def _as_row(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    return [parts[0][None]]
