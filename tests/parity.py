"""Models of transformers with random weights, and ours with the same. For test_parity.py.

Each family is a row of FAMILIES: their model, our config for it, and a function from their weights to ours, through
which gradients pass. The families that `minitx import` reads are compared in tests/huggingface too. Our embedding
multiplies its table by sqrt(D), theirs do not: the table is divided by it. Our RMSNorm takes the machine epsilon of
fp32, in bf16 too, which is set in their configs; our LayerNorm takes 1e-5.
"""

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
    """The weights and biases that modules source + key have, under the names target + value."""
    return {
        f"{target}{new}.{kind}": theirs[f"{source}{old}.{kind}"]
        for old, new in names.items()
        for kind in ("weight", "bias")
        if f"{source}{old}.{kind}" in theirs
    }


def llama_weights(theirs: Weights, config: ModelConfig) -> Weights:
    """For Qwen3. Both rotate the pairs (j, j + K / 2), so rows of q and k stay where they are."""
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
    # One matrix W serves table and head. T5 multiplies the input of its head by 1 / sqrt(D): our tied W / sqrt(D).
    ours = {"embedding.table.weight": theirs["shared.weight"] / math.sqrt(config.d_model)}
    attention = {"0.SelfAttention": "self_attn"}
    ours |= t5_stack(theirs, "encoder", config.n_layers, attention, {"0": "attn", "1": "ffn"})
    attention |= {"1.EncDecAttention": "cross_attn"}
    ours |= t5_stack(theirs, "decoder", config.decoder_layers, attention, {"0": "self", "1": "cross", "2": "ffn"})
    scale = math.sqrt(config.d_head)  # T5 does not divide its scores by it; ours does, so the queries compensate
    return {name: part * scale if name.endswith("q_proj.weight") else part for name, part in ours.items()}


def t5_stack(
    theirs: Weights, stack: str, layers: int, attentions: Mapping[str, str], sublayers: Mapping[str, str]
) -> dict[str, Tensor]:
    """attentions and sublayers: their names, which begin with a number, to ours."""
    # Their first layer holds the table of buckets, and its bias serves the other layers too.
    table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
    ours = rename(theirs, {table: f"{stack}.position.table", f"{stack}.final_layer_norm": f"{stack}.norm"})
    ffn = f"{len(attentions)}.DenseReluDense"
    names = {
        **{f"{number}.layer_norm": f"add_norm_{sublayer}.norm" for number, sublayer in sublayers.items()},
        **{f"{old}.{part}": f"{new}.{part}_proj" for old, new in attentions.items() for part in "qkvo"},
        f"{ffn}.wi": "ffn.up_proj", f"{ffn}.wo": "ffn.down_proj",
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
        joined = theirs[f"{source}attn.Wqkv.weight"].chunk(3)  # along the outputs
        ours |= {f"{target}self_attn.{part}_proj.weight": piece for part, piece in zip("qkv", joined, strict=True)}
    # Without biases its norms have none either.
    norms = [name for name in ours if name.endswith("norm.weight")]
    return ours | {name.replace("weight", "bias"): torch.zeros_like(ours[name]) for name in norms}


# --- the families -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    model: str  # their class
    config: str  # their class of configuration
    options: dict[str, Any]
    ours: ModelConfig  # for the same model
    weights: Callable[[Weights, ModelConfig], Weights]  # from their parameters to ours, by name


OURS = ModelConfig(d_model=D, n_heads=H, n_layers=3, d_ff=FF, vocab_size=VOCAB, tie_embeddings=False)
GPT = replace(OURS, architecture="decoder_only")
QWEN3 = replace(
    GPT, n_kv_heads=1, norm="rmsnorm", activation="swiglu", bias=False, qk_norm=True, d_head=16,
    position={"name": "rope", "base": 500.0, "scaling": "linear", "factor": 4.0},
)  # fmt: skip
BERT = replace(
    OURS, architecture="encoder_only", position={"name": "learned", "max_len": 48},
    norm_first=False, embedding_norm=True,
)  # fmt: skip
T5 = replace(
    OURS, n_decoder_layers=2, position={"name": "t5", "buckets": 8, "max_distance": 10},  # so short that all are met
    norm="rmsnorm", activation="relu", bias=False, tie_embeddings=True, d_head=16,
)  # fmt: skip

FAMILIES = {
    "qwen3": Family(
        "Qwen3ForCausalLM", "Qwen3Config",
        {
            "hidden_size": D, "num_attention_heads": H, "num_hidden_layers": 3, "intermediate_size": FF,
            "rms_norm_eps": EPS, "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": False,
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
    "t5": Family(
        "T5ForConditionalGeneration", "T5Config",
        {
            # Not a deeper decoder: their generate makes a cache for as many layers as the encoder has.
            "d_model": D, "num_heads": H, "d_ff": FF, "num_layers": 3, "num_decoder_layers": 2, "d_kv": 16,
            "layer_norm_epsilon": EPS, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,
        },
        T5, t5_weights,
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
        config._attn_implementation = "eager"  # not the kernel that ours calls
        theirs, ours = getattr(transformers, family.model)(config).eval(), build_model(family.ours).eval()
    if name == "bert":  # hidden states are compared: their heads have more layers
        theirs.pooler, ours.head = None, nn.Identity()
    draw_weights(theirs)
    copy_weights(family.weights(dict(theirs.named_parameters()), family.ours), ours)
    return theirs, ours


@torch.no_grad()
def draw_weights(theirs: nn.Module) -> None:
    """None zero, no norm the identity; small enough for little rounding and for logits of size one.

    Their own initial weights would hide errors: with a deviation of 0.02 attention is almost uniform.
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
