"""BERT (Devlin et al. 2019): post-norm, learned positions, a norm of the embeddings, a transform before the head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, Key, register
from minitx.huggingface.links import Link, module, modules, same


@register
class Bert(Family):
    """BertForMaskedLM. Every token is of type 0 here: a constant, which the table of positions takes in."""

    model_type, model, base = "bert", "BertForMaskedLM", "bert."
    task, length = "imported_masked_text", "max_position_embeddings"
    keys: ClassVar = {
        "hidden_size": Key("d_model", 768),
        "num_attention_heads": Key("n_heads", 12),
        "num_hidden_layers": Key("n_layers", 12),
        "intermediate_size": Key("d_ff", 3072),
        "layer_norm_eps": Key("norm_eps", 1e-12),
        "tie_word_embeddings": Key("tie_embeddings", True),
        "hidden_dropout_prob": Key("dropout", 0.1),
        "attention_probs_dropout_prob": Key("attention_dropout", 0.1),
    }
    fixed: ClassVar = {
        "architecture": "encoder_only", "norm_first": False, "embedding_norm": True, "scale_embeddings": False,
        "head_bias": True, "head_transform": True,
    }  # fmt: skip
    position = "learned"
    required: ClassVar = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
    activations: ClassVar = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "silu"}
    activation_key = ("hidden_act", "gelu")
    ignored = r"embeddings\.position_ids|pooler\..*|cls\.seq_relationship\..*"  # they judge pairs of sentences
    copies: ClassVar = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
    table = "bert.embeddings.word_embeddings.weight"
    lm_head = "cls.predictions.decoder.weight"

    def more_of_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """The table of positions."""
        return {"position": {"name": "learned", "max_len": theirs.get("max_position_embeddings", 512)}}

    def more_of_theirs(self, config: ModelConfig) -> dict[str, Any]:
        """Types of tokens, of which the second is never told."""
        return {"type_vocab_size": 2}

    def links(self, config: ModelConfig) -> Iterator[Link]:
        """All weights."""
        yield from self.ends(config)
        yield from module("head.transform.proj", "cls.predictions.transform.dense")
        yield from module("head.transform.norm", "cls.predictions.transform.LayerNorm")
        yield same("head.bias", "cls.predictions.bias")
        names = ("position_embeddings", "token_type_embeddings")
        tables = tuple(f"bert.embeddings.{name}.weight" for name in names)
        yield Link(("encoder.position.table.weight",), tables, _with_type, _without_type)
        yield from module("encoder.embedding_norm", "bert.embeddings.LayerNorm")
        parts = {
            "self_attn.q_proj": "attention.self.query", "self_attn.k_proj": "attention.self.key",
            "self_attn.v_proj": "attention.self.value", "self_attn.o_proj": "attention.output.dense",
            "add_norm_attn.norm": "attention.output.LayerNorm", "ffn.up_proj": "intermediate.dense",
            "ffn.down_proj": "output.dense", "add_norm_ffn.norm": "output.LayerNorm",
        }  # fmt: skip
        for i in range(config.n_layers):
            yield from modules(f"encoder.layers.{i}", f"bert.encoder.layer.{i}", parts)


def _with_type(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    positions, types = parts
    return [positions + types[0]]


def _without_type(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    (positions,) = parts
    return [positions, positions.new_zeros(2, positions.size(1))]
