"""GPT-2 (Radford et al. 2019): pre-norm, learned positions; q, k and v are one matrix, stored as [in, out]."""

from typing import Any, ClassVar

import torch

from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import UNCHANGED, Conversion, Family, in_layers

COLUMNS = Conversion(
    lambda tensor, count: [torch.t(part) for part in tensor.tensor_split(count, dim=-1)],
    lambda parts: torch.cat([torch.t(part) for part in parts], dim=-1),
)
"""Weights side by side, each stored as [in, out]; biases [out] are the same either way."""


class GPT2(Family):
    """GPT2LMHeadModel."""

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
