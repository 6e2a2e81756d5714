"""GPT-2 (Radford et al. 2019): pre-norm, learned positions; q, k and v are one matrix, stored as [in, out]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, Key, register
from minitx.huggingface.links import Link, layers, module, transposed


@register
class GPT2(Family):
    """GPT2LMHeadModel."""

    model_type, model, base = "gpt2", "GPT2LMHeadModel", "transformer."
    task, length = "imported_text", Key("n_positions", 1024)
    keys: ClassVar = {
        "n_embd": Key("d_model", 768),
        "n_head": Key("n_heads", 12),
        "n_layer": Key("n_layers", 12),
        "n_inner": Key("d_ff", None),
        "layer_norm_epsilon": Key("norm_eps", 1e-5),
        "tie_word_embeddings": Key("tie_embeddings", True),
        "resid_pdrop": Key("dropout", 0.1),
        "attn_pdrop": Key("attention_dropout", 0.1),
    }
    fixed: ClassVar = {"architecture": "decoder_only", "scale_embeddings": False}
    position = "learned"
    required: ClassVar = {
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
    }  # fmt: skip
    activations: ClassVar = {"gelu_new": "gelu_tanh", "gelu": "gelu", "relu": "relu", "silu": "silu"}
    activation_key = Key("activation_function", "gelu_new")
    ignored = r"h\.\d+\.attn\.(masked_)?bias"  # the causal mask
    table = "transformer.wte.weight"

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return {"embd_pdrop": config.dropout}

    def _links(self, config: ModelConfig) -> Iterator[Link]:
        yield from super()._links(config)
        yield from module("decoder.position.table", "transformer.wpe", bias=False)
        yield from module("decoder.norm", "transformer.ln_f")
        size, name, hf_name = config.n_layers, "decoder.layers", "transformer.h"
        yield from layers(size, name, hf_name, {"add_norm_self.norm": "ln_1", "add_norm_ffn.norm": "ln_2"})
        linear = {"self_attn.o_proj": "attn.c_proj", "ffn.up_proj": "mlp.c_fc", "ffn.down_proj": "mlp.c_proj"}
        yield from layers(size, name, hf_name, linear, transposed)
        for i in range(size):
            for kind in ("weight", "bias"):
                qkv = tuple(f"{name}.{i}.self_attn.{part}_proj.{kind}" for part in "qkv")
                yield Link(
                    qkv,
                    (f"{hf_name}.{i}.attn.c_attn.{kind}",),
                    lambda tensors: [part.t() for part in tensors[0].chunk(3, dim=-1)],
                    lambda tensors: [torch.cat([part.t() for part in tensors], dim=-1)],
                )
