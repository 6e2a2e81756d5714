"""T5 (Raffel et al. 2020) and T5 1.1: relative positions in buckets, RMS norms, no biases.

T5 does not divide its scores by sqrt(d_head); minitx does, and its queries compensate. The T5 of 2019 multiplies the
input of its tied head by 1 / sqrt(d_model): minitx stores W / sqrt(d_model) and scales the embeddings. T5 1.1 has two
tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, Key, register
from minitx.huggingface.links import Link, layers, module, scaled


@register
class T5(Family):
    """T5ForConditionalGeneration."""

    model_type, model, base = "t5", "T5ForConditionalGeneration", ""
    task, length = "imported_pairs", Key("n_positions", 512)
    keys: ClassVar = {
        "d_model": Key("d_model", 512),
        "num_heads": Key("n_heads", 8),
        "num_layers": Key("n_layers", 6),
        "num_decoder_layers": Key("n_decoder_layers", None),
        "d_kv": Key("d_head", 64),
        "d_ff": Key("d_ff", 2048),
        "layer_norm_epsilon": Key("norm_eps", 1e-6),
        "dropout_rate": Key("dropout", 0.1),
    }
    fixed: ClassVar = {"architecture": "encoder_decoder", "norm": "rmsnorm", "bias": False, "qkv_bias": False}
    position = "t5"
    handled = frozenset({"tie_embeddings", "scale_embeddings"})
    activations: ClassVar = {
        "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu",
        "gated-gelu": "geglu_tanh", "gated-silu": "swiglu",
    }  # fmt: skip
    activation_key = Key("feed_forward_proj", "relu")
    ignored = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"  # never used
    copies: ClassVar = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")}
    table = "shared.weight"

    def _position(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "name": "t5",
            "buckets": hf.get("relative_attention_num_buckets", 32),
            "max_distance": hf.get("relative_attention_max_distance", 128),
        }

    def _extra_settings(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        # An untied head is found in the weights.
        return {"scale_embeddings": hf.get("scale_decoder_outputs", hf.get("tie_word_embeddings", True)) is not False}

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "relative_attention_num_buckets": config.position.get("buckets", 32),
            "relative_attention_max_distance": config.position.get("max_distance", 128),
            "scale_decoder_outputs": config.scale_embeddings, "is_encoder_decoder": True,
        }  # fmt: skip

    def _links(self, config: ModelConfig) -> Iterator[Link]:
        factor = 1.0 / math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        yield scaled("embedding.table.weight", self.table, factor)
        if not config.tie_embeddings:
            yield scaled("head.weight", self.lm_head, factor)
        encoder = {"self_attn": ("add_norm_attn.norm", "SelfAttention")}
        decoder = {"self_attn": ("add_norm_self.norm", "SelfAttention")}
        decoder["cross_attn"] = ("add_norm_cross.norm", "EncDecAttention")
        yield from _stack("encoder", config.n_layers, encoder, config)
        yield from _stack("decoder", config.n_decoder_layers, decoder, config)


def _stack(name: str, count: int | None, parts: dict[str, tuple[str, str]], config: ModelConfig) -> Iterator[Link]:
    """All weights of a stack; parts are its attentions, with the name of their norm and their Hugging Face name."""
    assert config.d_head is not None  # resolved
    # The first layer has the table of buckets, which all layers share.
    table = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias"
    yield from module(f"{name}.position.table", table, bias=False)
    yield from module(f"{name}.norm", f"{name}.final_layer_norm", bias=False)
    ffn = f"layer.{len(parts)}"
    gated = config.activation in ("swiglu", "geglu_tanh")
    linear = {"gate_proj": "wi_0", "up_proj": "wi_1"} if gated else {"up_proj": "wi"}
    modules = {f"ffn.{part}": f"{ffn}.DenseReluDense.{hf}" for part, hf in (linear | {"down_proj": "wo"}).items()}
    modules["add_norm_ffn.norm"] = f"{ffn}.layer_norm"
    queries = {}
    for i, (part, (norm, hf)) in enumerate(parts.items()):
        modules |= {f"{part}.{letter}_proj": f"layer.{i}.{hf}.{letter}" for letter in "kvo"}
        modules[norm] = f"layer.{i}.layer_norm"
        queries[f"{part}.q_proj"] = f"layer.{i}.{hf}.q"
    weight = partial(scaled, factor=math.sqrt(config.d_head))
    yield from layers(count, f"{name}.layers", f"{name}.block", modules, bias=False)
    yield from layers(count, f"{name}.layers", f"{name}.block", queries, weight, bias=False)
