"""Models of transformers with random weights, and ours with the same. For test_parity.py and generation/.

Our config and our weights are those of `minitx import`, through whose conversion gradients pass too. Our RMSNorm takes
the machine epsilon of fp32, in bf16 too, which is set in their configs.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from minitx.config.schema import ModelConfig
from minitx.huggingface import importing
from minitx.huggingface.families import FAMILIES as IMPORTED
from minitx.models.builder import build_model

VOCAB, D, H, FF = 61, 48, 4, 80
EPS = torch.finfo(torch.float32).eps


class Family(NamedTuple):
    options: dict[str, Any]
    ours: ModelConfig  # for the same model


def family(name: str, **options: Any) -> Family:
    return Family(options, IMPORTED[name].from_hf({"vocab_size": VOCAB, **options}))


FAMILIES = {
    "qwen3": family(
        "qwen3", hidden_size=D, num_attention_heads=H, num_hidden_layers=3, intermediate_size=FF, rms_norm_eps=EPS,
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=False,
        rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    ),
    "bert": family(
        "bert", hidden_size=D, num_attention_heads=H, num_hidden_layers=3, intermediate_size=FF,
        max_position_embeddings=48, layer_norm_eps=1e-5,
    ),
    "t5": family(
        "t5",  # not a deeper decoder: their generate makes a cache for as many layers as the encoder has
        d_model=D, num_heads=H, d_ff=FF, num_layers=3, num_decoder_layers=2, d_kv=16, layer_norm_epsilon=EPS,
        relative_attention_num_buckets=8, relative_attention_max_distance=10,  # all occur
    ),
}  # fmt: skip


def converted(name: str, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights by name, made of theirs."""
    return importing._convert(IMPORTED[name], FAMILIES[name].ours, dict(theirs))[1]


@cache
def build_once(name: str) -> tuple[Any, Any]:
    kind = getattr(pytest.importorskip("transformers"), IMPORTED[name].model)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        config = kind.config_class(vocab_size=VOCAB, **special, **FAMILIES[name].options)
        config._attn_implementation = "eager"  # not the kernel that ours calls
        theirs, ours = kind(config).eval(), build_model(FAMILIES[name].ours).eval()
    sample_weights(theirs)
    ours.load_state_dict(converted(name, dict(theirs.named_parameters())))
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


def pair(name: str) -> tuple[Any, Any]:
    """Their model with random weights, and ours with the same, to be changed at will."""
    return deepcopy(build_once(name))
