"""GPT-NeoX (Black et al. 2022), the family of Pythia (Biderman et al. 2023), and Phi (Li et al. 2023).

Attention and feed-forward network read the same input, and a part of each head is rotated.
"""

from typing import ClassVar

import torch

from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import UNCHANGED, Conversion, in_layers
from minitx.huggingface.families.rotary import Rotary


class GPTNeoX(Rotary):
    """GPTNeoXForCausalLM: q, k and v are one matrix with the rows of each head together."""

    model_type, model, base = "gpt_neox", "GPTNeoXForCausalLM", "gpt_neox."
    task, length, activation = "imported_text", ("max_position_embeddings", 2048), ("hidden_act", "gelu")
    base_key, fraction_key, partial = ("rotary_emb_base", 10000.0), ("rotary_pct", 0.25), True
    defaults: ClassVar = {
        "hidden_size": 6144, "num_attention_heads": 64, "num_hidden_layers": 44, "intermediate_size": 24576,
        "layer_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_dropout": 0.0, "attention_dropout": 0.0,
        "use_parallel_residual": True,
    }  # fmt: skip
    fixed: ClassVar = {"architecture": "decoder_only", "scale_embeddings": False}
    required: ClassVar = {"attention_bias": True}
    modules: ClassVar = {
        "embedding.table": "gpt_neox.embed_in", "decoder.norm": "gpt_neox.final_layer_norm", "head": "embed_out",
    } | in_layers("decoder.layers", "gpt_neox.layers", {
        "add_norm_self.norm": "input_layernorm", "add_norm_ffn.norm": "post_attention_layernorm",
        **{f"self_attn.{part}_proj": "attention.query_key_value" for part in "qkv"},
        "self_attn.o_proj": "attention.dense", "ffn.up_proj": "mlp.dense_h_to_4h", "ffn.down_proj": "mlp.dense_4h_to_h",
    })  # fmt: skip
    ignored = rf"{Rotary.ignored}|.*attention\.(masked_)?bias"

    def _conversion(self, name: str, config: ModelConfig) -> Conversion:
        if ".self_attn." not in name or ".o_proj." in name:
            return UNCHANGED
        heads = config.n_heads
        return Conversion(
            lambda tensor, count: [part.flatten(0, 1) for part in tensor.unflatten(0, (heads, count, -1)).unbind(1)],
            lambda parts: torch.stack([part.unflatten(0, (heads, -1)) for part in parts], dim=1).flatten(0, 2),
        )


class Phi(Rotary):
    """PhiForCausalLM: one norm for attention and feed-forward network."""

    model_type, model, base = "phi", "PhiForCausalLM", "model."
    task, length, activation = "imported_text", ("max_position_embeddings", 2048), ("hidden_act", "gelu_new")
    fraction_key, partial = ("partial_rotary_factor", 0.5), True
    defaults: ClassVar = {
        "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": None,
        "intermediate_size": 8192, "layer_norm_eps": 1e-5, "tie_word_embeddings": False, "resid_pdrop": 0.0,
        "attention_dropout": 0.0,
    }  # fmt: skip
    fixed: ClassVar = {
        "architecture": "decoder_only", "scale_embeddings": False, "parallel_residual": True, "shared_norm": True,
        "head_bias": True,
    }  # fmt: skip
    required: ClassVar = {"qk_layernorm": False}
    modules: ClassVar = {
        "embedding.table": "model.embed_tokens", "decoder.norm": "model.final_layernorm", "head": "lm_head",
    } | in_layers("decoder.layers", "model.layers", {
        "add_norm_self.norm": "input_layernorm",
        "self_attn": "self_attn", "self_attn.o_proj": "self_attn.dense",
        "ffn.up_proj": "mlp.fc1", "ffn.down_proj": "mlp.fc2",
    })  # fmt: skip
