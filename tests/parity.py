"""Models of transformers with random weights, and ours with the same. For test_parity.py.

Each family is a row of FAMILIES: their model, our config for it, and a function from their weights to ours, through
which gradients pass; for BERT and T5 it is that of `minitx import`. Our embedding multiplies its table by sqrt(D),
theirs do not: the table is divided by it. Our RMSNorm takes the machine epsilon of fp32, in bf16 too, which is set in
their configs; our LayerNorm takes 1e-5.
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
from minitx.huggingface import importing
from minitx.huggingface.families import FAMILIES as IMPORTED
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


def imported_weights(theirs: Weights, config: ModelConfig) -> Weights:
    """By the conversion of `minitx import`, through which gradients pass too."""
    family = IMPORTED["bert" if config.architecture == "encoder_only" else "t5"]
    converted = importing._convert(family, config, dict(theirs))[1]
    return {name: converted[name] for name in importing._parameters(config)}  # each under its first name


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
        fused = theirs[f"{source}attn.Wqkv.weight"].chunk(3)  # along the outputs
        ours |= {f"{target}self_attn.{part}_proj.weight": piece for part, piece in zip("qkv", fused, strict=True)}
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
BERT = {
    "hidden_size": D, "num_attention_heads": H, "num_hidden_layers": 3, "intermediate_size": FF,
    "max_position_embeddings": 48, "layer_norm_eps": 1e-5, "vocab_size": VOCAB,
}  # fmt: skip
T5 = {
    # Not a deeper decoder: their generate makes a cache for as many layers as the encoder has.
    "d_model": D, "num_heads": H, "d_ff": FF, "num_layers": 3, "num_decoder_layers": 2, "d_kv": 16, "vocab_size": VOCAB,
    "layer_norm_epsilon": EPS, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,  # all occur
}  # fmt: skip

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
    "bert": Family("BertForMaskedLM", "BertConfig", BERT, IMPORTED["bert"].from_hf(BERT), imported_weights),
    "t5": Family("T5ForConditionalGeneration", "T5Config", T5, IMPORTED["t5"].from_hf(T5), imported_weights),
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
            **{"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **family.options}
        )
        config._attn_implementation = "eager"  # not the kernel that ours calls
        theirs, ours = getattr(transformers, family.model)(config).eval(), build_model(family.ours).eval()
    sample_weights(theirs)
    copy_weights(family.weights(dict(theirs.named_parameters()), family.ours), ours)
    return theirs, ours


@torch.no_grad()
def sample_weights(theirs: nn.Module) -> None:
    """Sample weights: none is zero, no norm is the identity, and logits are about 1, so that rounding is small.

    Their own initial weights would hide errors: with a deviation of 0.02 attention is almost uniform.
    """
    generator = torch.Generator().manual_seed(0)
    for name, part in theirs.named_parameters():
        part.mul_(part.dim() == 1).add_(torch.randn(part.shape, generator=generator), alpha=0.15)
        if name.endswith("Attention.q.weight"):
            part.div_(math.sqrt(D / H))  # T5 does not divide its scores: its queries are small from the start


@torch.no_grad()
def copy_weights(weights: Weights, ours: nn.Module) -> None:
    """Copy weights by name: those of our parameters, and no others."""
    parameters = dict(ours.named_parameters())
    assert parameters.keys() == weights.keys()
    for name, part in parameters.items():
        assert part.shape == weights[name].shape, name
        part.copy_(weights[name])


def pair(name: str) -> tuple[Any, Any]:
    """Their model with random weights, and ours with the same, to be changed at will."""
    return deepcopy(build_once(name))
