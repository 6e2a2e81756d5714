"""GPT-2 (Radford et al. 2019): pre-norm, learned positions, q, k and v from one matrix, which is kept as [in, out]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, Key, register
from minitx.huggingface.links import Link, joined, module, modules, transposed


@register
class GPT2(Family):
    """GPT2LMHeadModel."""

    model_type, model, base = "gpt2", "GPT2LMHeadModel", "transformer."
    task, length = "imported_text", "n_positions"
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
    activation_key = ("activation_function", "gelu_new")
    ignored = r"h\.\d+\.attn\.(masked_)?bias"  # the causal mask
    table = "transformer.wte.weight"

    def more_of_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """The table of positions."""
        return {"position": {"name": "learned", "max_len": theirs.get("n_positions", 1024)}}

    def more_of_theirs(self, config: ModelConfig) -> dict[str, Any]:
        """Dropout of the embeddings."""
        return {"embd_pdrop": config.dropout}

    def links(self, config: ModelConfig) -> Iterator[Link]:
        """All weights."""
        yield from self.ends(config)
        yield from module("decoder.position.table", "transformer.wpe", bias=False)
        yield from module("decoder.norm", "transformer.ln_f")
        for i in range(config.n_layers):
            ours, theirs = f"decoder.layers.{i}", f"transformer.h.{i}"
            yield from modules(ours, theirs, {"add_norm_self.norm": "ln_1", "add_norm_ffn.norm": "ln_2"})
            for kind in ("weight", "bias"):
                parts = [f"{ours}.self_attn.{part}_proj.{kind}" for part in "qkv"]
                yield joined(parts, f"{theirs}.attn.c_attn.{kind}", by_column=kind == "weight")
            linear = partial(module, weight=transposed)
            yield from linear(f"{ours}.self_attn.o_proj", f"{theirs}.attn.c_proj")
            yield from linear(f"{ours}.ffn.up_proj", f"{theirs}.mlp.c_fc")
            yield from linear(f"{ours}.ffn.down_proj", f"{theirs}.mlp.c_proj")
