"""T5 (Raffel et al. 2020) and T5 1.1: relative positions in buckets, RMS norms, no biases.

T5 does not divide its scores by sqrt(d_head); ours do, so the queries make up for it. T5 of 2019 multiplies what goes
into its head, which is its embedding's table W, by 1 / sqrt(d_model): W / sqrt(d_model) of ours, scaled on its way in,
does for both. T5 1.1 has a table for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, Key, register, resolved
from minitx.huggingface.links import Link, module, modules, scaled

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu",
    "gated-gelu": "geglu_tanh", "gated-silu": "swiglu",
}  # fmt: skip


@register
class T5(Family):
    """T5ForConditionalGeneration."""

    model_type, model, base = "t5", "T5ForConditionalGeneration", ""
    task, length = "imported_pairs", "n_positions"
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
    activations: ClassVar = ACTIVATIONS
    activation_key = ("feed_forward_proj", "relu")
    ignored = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"  # never used
    copies: ClassVar = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")}
    table = "shared.weight"

    def more_of_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Buckets, and whether the output is scaled; its own table of a head is found in the weights."""
        position = {
            "name": "t5",
            "buckets": theirs.get("relative_attention_num_buckets", 32),
            "max_distance": theirs.get("relative_attention_max_distance", 128),
        }
        told = theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings", True))
        return {"position": position, "scale_embeddings": told is not False}

    def more_of_theirs(self, config: ModelConfig) -> dict[str, Any]:
        """The same."""
        return {
            "relative_attention_num_buckets": config.position.get("buckets", 32),
            "relative_attention_max_distance": config.position.get("max_distance", 128),
            "scale_decoder_outputs": config.scale_embeddings, "tie_word_embeddings": config.tie_embeddings,
            "is_encoder_decoder": True,
        }  # fmt: skip

    def links(self, config: ModelConfig) -> Iterator[Link]:
        """All weights."""
        config = resolved(config)
        root = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        yield scaled("embedding.table.weight", self.table, 1.0 / root)
        if not config.tie_embeddings:
            yield scaled("head.weight", self.lm_head, 1.0 / root)
        attentions = {"self_attn": ("attn", "SelfAttention")}
        yield from _stack("encoder", config.n_layers, attentions, config)
        attentions = {"self_attn": ("self", "SelfAttention"), "cross_attn": ("cross", "EncDecAttention")}
        yield from _stack("decoder", config.n_decoder_layers or config.n_layers, attentions, config)


def _stack(name: str, layers: int, attentions: Mapping[str, tuple[str, str]], config: ModelConfig) -> Iterator[Link]:
    """attentions: ours to the name of its norm and to theirs."""
    assert config.d_head is not None  # resolved
    plain = partial(module, bias=False)
    # Their first layer holds the table of buckets, and hands its bias on to the others.
    yield from plain(f"{name}.position.table", f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias")
    yield from plain(f"{name}.norm", f"{name}.final_layer_norm")
    queries = partial(scaled, factor=math.sqrt(config.d_head))
    ffn = f"{len(attentions)}.DenseReluDense"
    gated = config.activation in ("swiglu", "geglu", "geglu_tanh")
    inner = {"ffn.gate_proj": "wi_0", "ffn.up_proj": "wi_1"} if gated else {"ffn.up_proj": "wi"}
    inner["ffn.down_proj"] = "wo"
    for i in range(layers):
        ours, theirs = f"{name}.layers.{i}", f"{name}.block.{i}.layer"
        for number, (own, (norm, their)) in enumerate(attentions.items()):
            yield from plain(f"{ours}.add_norm_{norm}.norm", f"{theirs}.{number}.layer_norm")
            yield from plain(f"{ours}.{own}.q_proj", f"{theirs}.{number}.{their}.q", queries)
            parts = {f"{own}.{part}_proj": f"{number}.{their}.{part}" for part in "kvo"}
            yield from modules(ours, theirs, parts, bias=False)
        yield from plain(f"{ours}.add_norm_ffn.norm", f"{theirs}.{len(attentions)}.layer_norm")
        yield from modules(ours, theirs, {own: f"{ffn}.{their}" for own, their in inner.items()}, bias=False)
