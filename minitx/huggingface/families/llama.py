"""Llama (Touvron et al. 2023), Mistral with a window, and Qwen2 with biases of queries, keys and values.

minitx and Hugging Face rotate the same pairs (j, j + K / 2) of each head, so rows of q and k keep their order.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.huggingface.families.family import Family, in_layers

SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3"}
"""Scalings of the frequencies, Hugging Face to minitx."""
SCALING_OPTIONS = {
    "factor": ("factor", 1.0), "low_freq_factor": ("low_freq_factor", 1.0),
    "high_freq_factor": ("high_freq_factor", 4.0), "original_max_position_embeddings": ("original_max_len", 8192),
}  # fmt: skip
"""Options of a scaling, Hugging Face to minitx, with the defaults of minitx."""


class Llama(Family):
    """LlamaForCausalLM."""

    model_type, model, base = "llama", "LlamaForCausalLM", "model."
    task, length, activation = "imported_text", ("max_position_embeddings", 512), ("hidden_act", "silu")
    keys: ClassVar = {
        "hidden_size": ("d_model", 4096), "num_attention_heads": ("n_heads", 32), "num_hidden_layers": ("n_layers", 32),
        "num_key_value_heads": ("n_kv_heads", None), "head_dim": ("d_head", None), "intermediate_size": ("d_ff", 11008),
        "rms_norm_eps": ("norm_eps", 1e-6), "tie_word_embeddings": ("tie_embeddings", False),
        "attention_dropout": ("attention_dropout", 0.0),
    }  # fmt: skip
    fixed: ClassVar = {
        "architecture": "decoder_only", "norm": "rmsnorm", "bias": False, "qkv_bias": False, "scale_embeddings": False,
    }  # fmt: skip
    position = "rope"
    required: ClassVar = {"attention_bias": False, "mlp_bias": False}
    activations: ClassVar = {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"}
    modules: ClassVar = {
        "embedding.table": "model.embed_tokens", "decoder.norm": "model.norm", "head": "lm_head",
    } | in_layers("decoder.layers", "model.layers", {
        "add_norm_self.norm": "input_layernorm", "add_norm_ffn.norm": "post_attention_layernorm",
        **{f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkvo"},
        **{f"ffn.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    })  # fmt: skip
    ignored = r".*rotary_emb\.inv_freq"

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
        scaling = {SCALING_OPTIONS[key][0]: options[key] for key in used if options.get(key) is not None}
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


class Mistral(Llama):
    """MistralForCausalLM: a token attends to the last sliding_window tokens, itself included, as in minitx."""

    model_type, model = "mistral", "MistralForCausalLM"
    keys = Llama.keys | {
        "num_key_value_heads": ("n_kv_heads", 8), "intermediate_size": ("d_ff", 14336),
        "sliding_window": ("window", 4096),
    }  # fmt: skip
    required: ClassVar = {}


class Qwen2(Llama):
    """Qwen2ForCausalLM."""

    model_type, model = "qwen2", "Qwen2ForCausalLM"
    keys = Llama.keys | {"num_key_value_heads": ("n_kv_heads", 32), "intermediate_size": ("d_ff", 22016)}
    fixed = Llama.fixed | {"qkv_bias": True}
    handled = frozenset({"window"})
    required: ClassVar = {}

    def _extra_settings(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        window = hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None
        count, first = hf.get("num_hidden_layers", 32), hf.get("max_window_layers", 28)
        default = {"full_attention"} if not window or first > 0 else set()
        default |= {"sliding_attention"} if window and first < count else set()
        kinds = set(hf.get("layer_types") or default)
        if len(kinds) > 1:
            raise ConfigError("layer_types: a window in some layers only is not supported")
        return {"window": window if kinds == {"sliding_attention"} else None}

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        return super()._extra_hf(config) | {
            "use_sliding_window": config.window is not None, "sliding_window": config.window, "max_window_layers": 0,
        }  # fmt: skip
