"""BERT (Devlin et al. 2019): post-norm, learned positions, a norm of the embeddings, a transform before the head."""

from typing import Any, ClassVar

from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, in_layers


class Bert(Family):
    """BertForMaskedLM. All tokens are of type 0, whose embedding is added to the table of positions."""

    model_type, model, base = "bert", "BertForMaskedLM", "bert."
    task, length, activation = "imported_masked_text", ("max_position_embeddings", 512), ("hidden_act", "gelu")
    defaults: ClassVar = {
        "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "intermediate_size": 3072,
        "layer_norm_eps": 1e-12, "tie_word_embeddings": True, "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    }  # fmt: skip
    fixed: ClassVar = {
        "architecture": "encoder_only", "norm_first": False, "embedding_norm": True, "scale_embeddings": False,
        "head_bias": True, "head_transform": True,
    }  # fmt: skip
    required: ClassVar = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
    modules: ClassVar = {
        "embedding.table": "bert.embeddings.word_embeddings", "encoder.embedding_norm": "bert.embeddings.LayerNorm",
        "encoder.position.table": "bert.embeddings.position_embeddings",
        "head.transform.proj": "cls.predictions.transform.dense",
        "head.transform.norm": "cls.predictions.transform.LayerNorm",
        "head": "cls.predictions.decoder", "head.bias": "cls.predictions.bias",
    } | in_layers("encoder.layers", "bert.encoder.layer", {
        "self_attn.q_proj": "attention.self.query", "self_attn.k_proj": "attention.self.key",
        "self_attn.v_proj": "attention.self.value", "self_attn.o_proj": "attention.output.dense",
        "add_norm_attn.norm": "attention.output.LayerNorm", "ffn.up_proj": "intermediate.dense",
        "ffn.down_proj": "output.dense", "add_norm_ffn.norm": "output.LayerNorm",
    })  # fmt: skip
    ignored = r"embeddings\.position_ids|pooler\..*|cls\.seq_relationship\..*"  # classify pairs of sentences
    copies: ClassVar = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
    separate = frozenset(copies)
    added: ClassVar = {"bert.embeddings.token_type_embeddings.weight": "bert.embeddings.position_embeddings.weight"}

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return {"type_vocab_size": 2}
