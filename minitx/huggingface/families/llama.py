"""Llama (Touvron et al. 2023), and Mistral (Jiang et al. 2023), which has a window."""

from typing import ClassVar

from minitx.huggingface.families.family import in_layers
from minitx.huggingface.families.rotary import Rotary


class Llama(Rotary):
    """LlamaForCausalLM."""

    model_type, model, base = "llama", "LlamaForCausalLM", "model."
    task, length, activation = "imported_text", ("max_position_embeddings", 2048), ("hidden_act", "silu")
    defaults: ClassVar = {
        "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": None,
        "head_dim": None, "intermediate_size": 11008, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "attention_dropout": 0.0,
    }  # fmt: skip
    fixed: ClassVar = {
        "architecture": "decoder_only", "norm": "rmsnorm", "bias": False, "qkv_bias": False, "scale_embeddings": False,
    }  # fmt: skip
    required: ClassVar = {"attention_bias": False, "mlp_bias": False}
    activations: ClassVar = {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"}
    modules: ClassVar = {
        "embedding.table": "model.embed_tokens", "decoder.norm": "model.norm", "head": "lm_head",
    } | in_layers("decoder.layers", "model.layers", {
        "add_norm_self.norm": "input_layernorm", "add_norm_ffn.norm": "post_attention_layernorm",
        "self_attn": "self_attn", "ffn": "mlp",
    })  # fmt: skip


class Mistral(Llama):
    """MistralForCausalLM: a token attends to the last sliding_window tokens, itself included, as in minitx."""

    divisible = False
    model_type, model, length = "mistral", "MistralForCausalLM", ("max_position_embeddings", 131072)
    defaults = Llama.defaults | {"num_key_value_heads": 8, "intermediate_size": 14336, "sliding_window": 4096}
    required: ClassVar = {}
