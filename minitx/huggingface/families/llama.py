"""Llama (Touvron et al. 2023), Mistral with a window, and Qwen2 with biases of queries, keys and values.

minitx and Hugging Face rotate the same pairs (j, j + K / 2) of each head, so rows of q and k keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, Key, register
from minitx.huggingface.links import Link, layers, module

SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3"}
"""Scalings of the frequencies, Hugging Face to minitx."""
SCALING_OPTIONS = {
    "factor": Key("factor", 1.0), "low_freq_factor": Key("low_freq_factor", 1.0),
    "high_freq_factor": Key("high_freq_factor", 4.0),
    "original_max_position_embeddings": Key("original_max_len", 8192),
}  # fmt: skip
"""Options of a scaling, Hugging Face to minitx, with the defaults of minitx."""


@register
class Llama(Family):
    """LlamaForCausalLM."""

    model_type, model, base = "llama", "LlamaForCausalLM", "model."
    task, length = "imported_text", Key("max_position_embeddings", 512)
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
    activation_key = Key("hidden_act", "silu")
    ignored = r".*rotary_emb\.inv_freq"
    table = "model.embed_tokens.weight"

    def _position(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        # Versions of transformers differ in where they store these options.
        options = {"rope_theta": hf.get("rope_theta", 10000.0), **(hf.get("rope_scaling") or {})}
        options |= hf.get("rope_parameters") or {}
        kind = options.get("rope_type", options.get("type", "default"))
        if kind not in SCALINGS:
            raise ConfigError(f"rope_scaling of type {kind} is not supported; minitx imports {', '.join(SCALINGS)}")
        fraction = options.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0))
        if fraction != 1.0:
            raise ConfigError(f"partial_rotary_factor {fraction} is not supported; minitx imports 1.0")
        position = {"name": "rope", "base": float(options["rope_theta"])}
        if kind == "default":
            return position
        used = SCALING_OPTIONS if kind == "llama3" else ["factor"]
        scaling = {SCALING_OPTIONS[key].name: options[key] for key in used if options.get(key) is not None}
        return position | {"scaling": SCALINGS[kind]} | scaling

    def _unsupported_position(self, position: Mapping[str, Any]) -> list[str]:
        scaling, fraction = position.get("scaling", "none"), position.get("fraction", 1.0)
        wrong = [] if scaling in SCALINGS.values() else [f"model.position.scaling {scaling}"]
        return wrong + ([] if fraction == 1.0 else [f"model.position.fraction {fraction}"])

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        position = config.position
        kind = {name: hf_name for hf_name, name in SCALINGS.items()}[position.get("scaling", "none")]
        options = {"rope_type": kind, "rope_theta": position.get("base", 10000.0)}
        if kind != "default":
            options |= {key: position.get(name, default) for key, (name, default) in SCALING_OPTIONS.items()}
        return {"rope_parameters": options}

    def _links(self, config: ModelConfig) -> Iterator[Link]:
        yield from super()._links(config)
        yield from module("decoder.norm", "model.norm", bias=False)
        modules = {f"ffn.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
        modules |= {"add_norm_self.norm": "input_layernorm", "add_norm_ffn.norm": "post_attention_layernorm"}
        modules["self_attn.o_proj"] = "self_attn.o_proj"
        qkv = {f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"}
        yield from layers(config.n_layers, "decoder.layers", "model.layers", modules, bias=False)
        yield from layers(config.n_layers, "decoder.layers", "model.layers", qkv, bias=bool(config.qkv_bias))


@register
class Mistral(Llama):
    """MistralForCausalLM: a token attends to the last sliding_window tokens, itself included, as in minitx."""

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
    keys = Llama.keys | {"num_key_value_heads": Key("n_kv_heads", 32), "intermediate_size": Key("d_ff", 22016)}
    fixed = Llama.fixed | {"qkv_bias": True}
    handled = frozenset({"window"})
    required: ClassVar = {}

    def _extra_settings(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        window = hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None
        count, first = hf.get("num_hidden_layers", 32), hf.get("max_window_layers", 28)
        default = ["sliding_attention" if window and i >= first else "full_attention" for i in range(count)]
        kinds = set(hf.get("layer_types") or default)
        if len(kinds) > 1:
            raise ConfigError("layer_types: a window in some layers only is not supported")
        return {"window": window if kinds == {"sliding_attention"} else None}

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return super()._extra_hf(config) | {
            "use_sliding_window": config.window is not None, "sliding_window": config.window, "max_window_layers": 0,
        }  # fmt: skip
