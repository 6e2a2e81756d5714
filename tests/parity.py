"""Models of transformers with random weights, and ours with the same. For test_parity.py.

Each family is a row of FAMILIES: their model, our config for it, and a function from their weights to ours. These
functions say what differs between the two houses. Three things are the same in all of them:

- Our embedding multiplies its table by sqrt(D), theirs does not: the table is divided by it.
- Our RMSNorm takes the machine epsilon of fp32, in bf16 too: theirs are told so. Our LayerNorm takes 1e-5.
- A linear map is stored as [out, in]; only GPT-2 says so where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minitx.config.schema import ModelConfig
from minitx.models.builder import build_model

Weights = Mapping[str, Tensor]
VOCAB, D, H, FF = 61, 48, 4, 80
EPS = torch.finfo(torch.float32).eps


# --- from their weights to ours ---------------------------------------------------------------------------------------


def rename(theirs: Weights, names: Mapping[str, str], source: str = "", target: str = "") -> dict[str, Tensor]:
    """Those weights and biases of modules source + key that there are, under the names target + value."""
    return {
        f"{target}{new}.{kind}": theirs[f"{source}{old}.{kind}"]
        for old, new in names.items()
        for kind in ("weight", "bias")
        if f"{source}{old}.{kind}" in theirs
    }


def split_qkv(joined: Tensor, name: str, kind: str) -> dict[str, Tensor]:
    """One map for queries, keys and values, in this order along the outputs, as three."""
    return {f"{name}.{part}_proj.{kind}": piece for part, piece in zip("qkv", joined.chunk(3), strict=True)}


def gpt2_weights(theirs: Weights, config: ModelConfig) -> Weights:
    ours = {
        "embedding.table.weight": theirs["transformer.wte.weight"] / math.sqrt(config.d_model),
        "decoder.position.table.weight": theirs["transformer.wpe.weight"],
        **rename(theirs, {"transformer.ln_f": "decoder.norm", "lm_head": "head"}),
    }
    # Conv1D, the name of their linear maps, keeps its matrix as [in, out].
    theirs = {name: part.mT if ".c_" in name and part.dim() == 2 else part for name, part in theirs.items()}
    names = {
        "ln_1": "add_norm_self.norm", "ln_2": "add_norm_ffn.norm",
        "attn.c_proj": "self_attn.o_proj", "mlp.c_fc": "ffn.up_proj", "mlp.c_proj": "ffn.down_proj",
    }  # fmt: skip
    for i in range(config.n_layers):
        source, target = f"transformer.h.{i}.", f"decoder.layers.{i}."
        ours |= rename(theirs, names, source, target)
        for kind in ("weight", "bias"):
            ours |= split_qkv(theirs[f"{source}attn.c_attn.{kind}"], f"{target}self_attn", kind)
    return ours


def llama_weights(theirs: Weights, config: ModelConfig) -> Weights:
    """Also Mistral and Qwen3. Both houses turn the pairs (j, j + K / 2), so rows of q and k stay where they are."""
    ours = {
        "embedding.table.weight": theirs["model.embed_tokens.weight"] / math.sqrt(config.d_model),
        **rename(theirs, {"model.norm": "decoder.norm", "lm_head": "head"}),
    }
    names = {
        "input_layernorm": "add_norm_self.norm", "post_attention_layernorm": "add_norm_ffn.norm",  # before the ffn
        "mlp.gate_proj": "ffn.gate_proj", "mlp.up_proj": "ffn.up_proj", "mlp.down_proj": "ffn.down_proj",
        **{f"self_attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkvo"},
        **{f"self_attn.{part}_norm": f"self_attn.{part}_norm" for part in "qk"},  # Qwen3
    }  # fmt: skip
    for i in range(config.n_layers):
        ours |= rename(theirs, names, f"model.layers.{i}.", f"decoder.layers.{i}.")
    return ours


def bert_weights(theirs: Weights, config: ModelConfig) -> Weights:
    # Every token is of type 0 here: a constant, which the table of positions takes in.
    positions = theirs["embeddings.position_embeddings.weight"] + theirs["embeddings.token_type_embeddings.weight"][0]
    ours = {
        "embedding.table.weight": theirs["embeddings.word_embeddings.weight"] / math.sqrt(config.d_model),
        "encoder.position.table.weight": positions,
        **rename(theirs, {"embeddings.LayerNorm": "encoder.embedding_norm"}),
    }
    names = {
        "attention.self.query": "self_attn.q_proj", "attention.self.key": "self_attn.k_proj",
        "attention.self.value": "self_attn.v_proj", "attention.output.dense": "self_attn.o_proj",
        "attention.output.LayerNorm": "add_norm_attn.norm", "output.LayerNorm": "add_norm_ffn.norm",
        "intermediate.dense": "ffn.up_proj", "output.dense": "ffn.down_proj",
    }  # fmt: skip
    for i in range(config.n_layers):
        ours |= rename(theirs, names, f"encoder.layer.{i}.", f"encoder.layers.{i}.")
    return ours


def t5_weights(theirs: Weights, config: ModelConfig) -> Weights:
    # One matrix W serves table and head. T5 of 2019 multiplies what goes into its head by 1 / sqrt(D), so that a tied
    # W / sqrt(D) of ours does for both; T5 v1.1 does not, and asks for a head with W itself.
    ours = {"embedding.table.weight": theirs["shared.weight"] / math.sqrt(config.d_model)}
    if not config.tie_embeddings:
        ours["head.weight"] = theirs["shared.weight"]
    attention = {"0.SelfAttention": "self_attn"}
    ours |= t5_stack(theirs, "encoder", config.n_layers, attention, {"0": "attn", "1": "ffn"})
    attention |= {"1.EncDecAttention": "cross_attn"}
    layers = config.n_layers if config.n_decoder_layers is None else config.n_decoder_layers
    ours |= t5_stack(theirs, "decoder", layers, attention, {"0": "self", "1": "cross", "2": "ffn"})
    # T5 does not divide its scores by sqrt(K); ours does, so the queries make up for it.
    scale = math.sqrt(config.d_model // config.n_heads if config.d_head is None else config.d_head)
    return {name: part * scale if name.endswith("q_proj.weight") else part for name, part in ours.items()}


def t5_stack(
    theirs: Weights, stack: str, layers: int, attentions: Mapping[str, str], sublayers: Mapping[str, str]
) -> dict[str, Tensor]:
    """attentions and sublayers: their names, which begin with a number, to ours."""
    # Their first layer holds the table of buckets, and hands its bias on to the others.
    table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
    ours = rename(theirs, {table: f"{stack}.position.table", f"{stack}.final_layer_norm": f"{stack}.norm"})
    ffn = f"{len(attentions)}.DenseReluDense"
    names = {
        **{f"{number}.layer_norm": f"add_norm_{sublayer}.norm" for number, sublayer in sublayers.items()},
        **{f"{old}.{part}": f"{new}.{part}_proj" for old, new in attentions.items() for part in "qkvo"},
        f"{ffn}.wi": "ffn.up_proj", f"{ffn}.wo": "ffn.down_proj",
        f"{ffn}.wi_0": "ffn.gate_proj", f"{ffn}.wi_1": "ffn.up_proj",  # gated: instead of wi
    }  # fmt: skip
    for i in range(layers):
        ours |= rename(theirs, names, f"{stack}.block.{i}.layer.", f"{stack}.layers.{i}.")
    return ours


def mpt_weights(theirs: Weights, config: ModelConfig) -> Weights:
    ours = {
        "embedding.table.weight": theirs["transformer.wte.weight"] / math.sqrt(config.d_model),
        **rename(theirs, {"transformer.norm_f": "decoder.norm", "lm_head": "head"}),
    }
    names = {
        "norm_1": "add_norm_self.norm", "norm_2": "add_norm_ffn.norm",
        "attn.out_proj": "self_attn.o_proj", "ffn.up_proj": "ffn.up_proj", "ffn.down_proj": "ffn.down_proj",
    }  # fmt: skip
    for i in range(config.n_layers):
        source, target = f"transformer.blocks.{i}.", f"decoder.layers.{i}."
        ours |= rename(theirs, names, source, target)
        ours |= split_qkv(theirs[f"{source}attn.Wqkv.weight"], f"{target}self_attn", "weight")
    # Without biases MPT means those of its norms too.
    norms = [name for name in ours if name.endswith("norm.weight")]
    return ours | {name.replace("weight", "bias"): torch.zeros_like(ours[name]) for name in norms}


# --- the families -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    model: str
    """Their class of model."""
    config: str
    """Their class of configuration."""
    options: dict[str, Any]
    """What is said in it."""
    ours: ModelConfig
    """Our config for the same model."""
    weights: Callable[[Weights, ModelConfig], Weights]
    """From their parameters to ours, by name; gradients find their way back through it."""


OURS = ModelConfig(d_model=D, n_heads=H, n_layers=3, d_ff=FF, vocab_size=VOCAB, tie_embeddings=False)
GPT = replace(OURS, architecture="decoder_only")
LLAMA = replace(
    GPT, position={"name": "rope", "base": 500.0}, n_kv_heads=2, norm="rmsnorm", activation="swiglu", bias=False
)
MISTRAL = replace(LLAMA, window=4, d_head=16)  # less than the sequences of the tests
QWEN3 = replace(
    LLAMA, n_kv_heads=1, qk_norm=True, position={"name": "rope", "base": 500.0, "scaling": "linear", "factor": 4.0}
)
BERT = replace(
    OURS, architecture="encoder_only", position={"name": "learned", "max_len": 48},
    norm_first=False, embedding_norm=True,
)  # fmt: skip
T5 = replace(
    OURS, n_decoder_layers=2, position={"name": "t5", "buckets": 8, "max_distance": 10},  # so short that all are met
    norm="rmsnorm", activation="relu", bias=False, tie_embeddings=True, d_head=16,
)  # fmt: skip

THEIR_LLAMA = {
    "hidden_size": D, "num_attention_heads": H, "num_hidden_layers": 3, "intermediate_size": FF, "rms_norm_eps": EPS,
    "num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "tie_word_embeddings": False,
}  # fmt: skip
THEIR_T5 = {
    # Not a deeper decoder: their generate makes a cache for as many layers as the encoder has.
    "d_model": D, "num_heads": H, "d_ff": FF, "num_layers": 3, "num_decoder_layers": 2, "layer_norm_epsilon": EPS,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,
}  # fmt: skip

FAMILIES = {
    "gpt2": Family(
        "GPT2LMHeadModel", "GPT2Config",
        {
            "n_embd": D, "n_head": H, "n_layer": 3, "n_inner": FF, "n_positions": 48, "tie_word_embeddings": False,
            "activation_function": "gelu",  # the exact one; GPT-2 itself was trained with the approximation by tanh
        },
        replace(GPT, position={"name": "learned", "max_len": 48}), gpt2_weights,
    ),
    "llama": Family("LlamaForCausalLM", "LlamaConfig", THEIR_LLAMA, LLAMA, llama_weights),
    "mistral": Family(  # both windows count the query too
        "MistralForCausalLM", "MistralConfig", THEIR_LLAMA | {"sliding_window": 4, "head_dim": 16},
        MISTRAL, llama_weights,
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM", "Qwen3Config",
        THEIR_LLAMA | {
            "num_key_value_heads": 1, "head_dim": D // H,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
        },
        QWEN3, llama_weights,
    ),
    "bert": Family(
        "BertModel", "BertConfig",
        {
            "hidden_size": D, "num_attention_heads": H, "num_hidden_layers": 3, "intermediate_size": FF,
            "max_position_embeddings": 48, "layer_norm_eps": 1e-5,
        },
        BERT, bert_weights,
    ),
    "t5": Family("T5ForConditionalGeneration", "T5Config", THEIR_T5 | {"d_kv": 16}, T5, t5_weights),
    "t5-v1.1": Family(
        "T5ForConditionalGeneration", "T5Config",
        THEIR_T5 | {
            "d_kv": D // H, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
            "dense_act_fn": "gelu",  # the exact one, as for GPT-2
        },
        replace(T5, d_head=None, activation="geglu", tie_embeddings=False), t5_weights,
    ),
    "mpt": Family(
        "MptForCausalLM", "MptConfig",
        {"d_model": D, "n_heads": H, "n_layers": 3, "max_seq_len": 48, "tie_word_embeddings": False},
        replace(GPT, d_ff=4 * D, position={"name": "alibi"}, bias=False), mpt_weights,
    ),
}  # fmt: skip


@cache
def build_once(name: str) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    family = FAMILIES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, family.config)(
            vocab_size=VOCAB, bos_token_id=None, eos_token_id=None, pad_token_id=None, **family.options
        )
        config._attn_implementation = "eager"  # written out: not the kernel that ours calls
        theirs, ours = getattr(transformers, family.model)(config).eval(), build_model(family.ours).eval()
    if name == "bert":  # hidden states are compared: their heads have layers of their own
        theirs.pooler, ours.head = None, nn.Identity()
    draw_weights(theirs)
    copy_weights(family.weights(dict(theirs.named_parameters()), family.ours), ours)
    return theirs, ours


@torch.no_grad()
def draw_weights(theirs: nn.Module) -> None:
    """None zero, no norm the identity; small enough for rounding not to grow on its way up, and for logits of size one.

    Their own first weights would hide much: with a deviation of 0.02 attention is all but uniform.
    """
    generator = torch.Generator().manual_seed(0)
    for name, part in theirs.named_parameters():
        part.mul_(part.dim() == 1).add_(torch.randn(part.shape, generator=generator), alpha=0.15)
        if name.endswith("Attention.q.weight"):
            part.div_(math.sqrt(D / H))  # T5 does not divide its scores: its queries are small from the start


@torch.no_grad()
def copy_weights(weights: Weights, ours: nn.Module) -> None:
    """Each of our weights must be there, and nothing else."""
    parameters = dict(ours.named_parameters())
    assert parameters.keys() == weights.keys()
    for name, part in parameters.items():
        assert part.shape == weights[name].shape, name
        part.copy_(weights[name])


def pair(name: str) -> tuple[Any, Any]:
    """Their model with random weights, and ours with the same, to be changed at will."""
    return deepcopy(build_once(name))
