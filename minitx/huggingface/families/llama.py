"""Llama (Touvron et al. 2023), and its kin: Mistral with a window, Qwen2 with biases of queries, keys and values.

Both houses turn the pairs (j, j + K / 2) of each head, so rows of q and k stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, Key, register
from minitx.huggingface.links import Link, module, modules

SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3"}
"""Ways to stretch waves, theirs to ours."""
STRETCHING = {
    "factor": Key("factor", 1.0), "low_freq_factor": Key("low_freq_factor", 1.0),
    "high_freq_factor": Key("high_freq_factor", 4.0),
    "original_max_position_embeddings": Key("original_max_len", 8192),
}  # fmt: skip
"""How far, theirs to ours, with what our scheme takes where nothing is said."""


@register
class Llama(Family):
    """LlamaForCausalLM."""

    model_type, model, base = "llama", "LlamaForCausalLM", "model."
    task, length = "imported_text", "max_position_embeddings"
    keys: ClassVar = {
        "hidden_size": Key("d_model", 4096),
        "num_attention_heads": Key("n_heads", 32),
        "num_hidden_layers": Key("n_layers", 32),
        "num_key_value_heads": Key("n_kv_heads", None),
        "head_dim": Key("d_head", None),
        "intermediate_size": Key("d_ff", 11008),
        "rms_norm_eps": Key("norm_eps", 1e-6),
        "tie_word_embeddings": Key("tie_embeddings", False),
        "attention_dropout": Key("attention_dropout", 0.0),
    }
    fixed: ClassVar = {
        "architecture": "decoder_only", "norm": "rmsnorm", "bias": False, "qkv_bias": False, "scale_embeddings": False,
    }  # fmt: skip
    position = "rope"
    required: ClassVar = {"attention_bias": False, "mlp_bias": False}
    activations: ClassVar = {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"}
    activation_key = ("hidden_act", "silu")
    ignored = r".*rotary_emb\.inv_freq"
    table = "model.embed_tokens.weight"

    def more_of_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """The waves."""
        return {"position": _rope(theirs)}

    def more_of_theirs(self, config: ModelConfig) -> dict[str, Any]:
        """The waves."""
        own = config.position
        names = {ours: theirs for theirs, ours in SCALINGS.items()}
        told = {"rope_type": names[own.get("scaling", "none")], "rope_theta": own.get("base", 10000.0)}
        if told["rope_type"] != "default":
            told |= {key: own.get(ours, default) for key, (ours, default) in STRETCHING.items()}
        return {"rope_parameters": told}

    def more_wrong(self, config: ModelConfig) -> list[str]:
        """Positions."""
        own = config.position
        wrong = [] if own.get("scaling", "none") in SCALINGS.values() else [f"model.position.scaling {own['scaling']}"]
        return wrong + ([] if own.get("fraction", 1.0) == 1.0 else [f"model.position.fraction {own['fraction']}"])

    def links(self, config: ModelConfig) -> Iterator[Link]:
        """All weights."""
        yield from self.ends(config)
        yield from module("decoder.norm", "model.norm", bias=False)
        norms = {"add_norm_self.norm": "input_layernorm", "add_norm_ffn.norm": "post_attention_layernorm"}
        linear = {f"ffn.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
        qkv = {f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"}
        linear["self_attn.o_proj"] = "self_attn.o_proj"
        for i in range(config.n_layers):
            ours, theirs = f"decoder.layers.{i}", f"model.layers.{i}"
            yield from modules(ours, theirs, {**norms, **linear}, bias=False)
            yield from modules(ours, theirs, qkv, bias=bool(config.qkv_bias))


@register
class Mistral(Llama):
    """MistralForCausalLM: each token sees the latest sliding_window of them; both houses count it itself, too."""

    model_type, model = "mistral", "MistralForCausalLM"
    keys = Llama.keys | {
        "num_key_value_heads": Key("n_kv_heads", 8),
        "intermediate_size": Key("d_ff", 14336),
        "sliding_window": Key("window", 4096),
    }
    required: ClassVar = {}


@register
class Qwen2(Llama):
    """Qwen2ForCausalLM."""

    model_type, model = "qwen2", "Qwen2ForCausalLM"
    keys = Llama.keys | {
        "num_key_value_heads": Key("n_kv_heads", 32),
        "intermediate_size": Key("d_ff", 22016),
    }
    fixed = Llama.fixed | {"qkv_bias": True}
    handled = frozenset({"window"})
    required: ClassVar = {}

    def more_of_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """The waves, and a window where every layer has it."""
        window = theirs.get("sliding_window", 4096) if theirs.get("use_sliding_window", False) else None
        layers, first = theirs.get("num_hidden_layers", 32), theirs.get("max_window_layers", 28)
        usual = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
        kinds = set(theirs.get("layer_types") or usual)
        if len(kinds) > 1:
            raise ConfigError("layer_types: a window in some layers and none in others is not known here")
        return {"position": _rope(theirs), "window": window if kinds == {"sliding_attention"} else None}

    def more_of_theirs(self, config: ModelConfig) -> dict[str, Any]:
        """The waves, and the window of every layer."""
        told = super().more_of_theirs(config)
        return told | {
            "use_sliding_window": config.window is not None, "sliding_window": config.window, "max_window_layers": 0,
        }  # fmt: skip


def _rope(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """model.position; the settings have stood in three places over the years."""
    told = {"rope_theta": theirs.get("rope_theta", 10000.0), **(theirs.get("rope_scaling") or {})}
    told |= theirs.get("rope_parameters") or {}
    kind = told.get("rope_type", told.get("type", "default"))
    if kind not in SCALINGS:
        raise ConfigError(f"rope_scaling of type {kind} is not known here, only {', '.join(SCALINGS)} are")
    share = told.get("partial_rotary_factor", theirs.get("partial_rotary_factor", 1.0))
    if share != 1.0:
        raise ConfigError(f"partial_rotary_factor {share} is not known here, for this family only 1.0 is")
    own = {"name": "rope", "base": float(told["rope_theta"])}
    if kind != "default":
        own |= {"scaling": SCALINGS[kind]}
        used = STRETCHING if kind == "llama3" else ["factor"]
        own |= {STRETCHING[key].ours: told[key] for key in used if told.get(key) is not None}
    return own
