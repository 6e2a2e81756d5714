"""BERT (Devlin et al. 2019): post-norm, learned positions, a norm of the embeddings, a transform before the head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, Key, register
from minitx.huggingface.links import Link, layers, module, single


@register
class Bert(Family):
    """BertForMaskedLM. All tokens are of type 0, whose embedding is added to the table of positions."""

    model_type, model, base = "bert", "BertForMaskedLM", "bert."
    task, length = "imported_masked_text", Key("max_position_embeddings", 512)
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
    activation_key = Key("hidden_act", "gelu")
    ignored = r"embeddings\.position_ids|pooler\..*|cls\.seq_relationship\..*"  # classify pairs of sentences
    copies: ClassVar = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
    table = "bert.embeddings.word_embeddings.weight"
    lm_head = "cls.predictions.decoder.weight"

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return {"type_vocab_size": 2}

    def _links(self, config: ModelConfig) -> Iterator[Link]:
        yield from super()._links(config)
        yield from module("head.transform.proj", "cls.predictions.transform.dense")
        yield from module("head.transform.norm", "cls.predictions.transform.LayerNorm")
        yield single("head.bias", "cls.predictions.bias")
        yield Link(
            ("encoder.position.table.weight",),
            ("bert.embeddings.position_embeddings.weight", "bert.embeddings.token_type_embeddings.weight"),
            lambda tensors: [tensors[0] + tensors[1][0]],
            lambda tensors: [tensors[0], tensors[0].new_zeros(2, config.d_model)],
        )
        yield from module("encoder.embedding_norm", "bert.embeddings.LayerNorm")
        modules = {
            "self_attn.q_proj": "attention.self.query", "self_attn.k_proj": "attention.self.key",
            "self_attn.v_proj": "attention.self.value", "self_attn.o_proj": "attention.output.dense",
            "add_norm_attn.norm": "attention.output.LayerNorm", "ffn.up_proj": "intermediate.dense",
            "ffn.down_proj": "output.dense", "add_norm_ffn.norm": "output.LayerNorm",
        }  # fmt: skip
        yield from layers(config.n_layers, "encoder.layers", "bert.encoder.layer", modules)
