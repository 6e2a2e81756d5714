"""Layers, norms, the feed-forward network, and dropout where it belongs; numbers that each part refuses."""

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from minitx import nn
from minitx.nn.layers import Layer
from minitx.nn.norms import RMSNorm
from small_models import close, roughen_weights

D, HEADS = 12, 3


@pytest.mark.parametrize("kind", [nn.EncoderLayer, nn.DecoderLayer])
def test_parallel_sublayers_read_the_input_of_their_layer(kind: type[Layer]) -> None:
    """Without a stack nothing is padding, and a decoder's layer is causal."""
    attend = [nn.MultiHeadAttention(D, HEADS) for _ in range(2)]
    layer = roughen_weights(kind(attend[0], nn.FeedForward(D, 20), D, attend[1], parallel=True))
    x, memory = torch.randn(3, 5, D), torch.randn(3, 7, D)
    own = attend[0](getattr(layer, kind.first_norm).norm(x), causal=kind is nn.DecoderLayer)
    cross = attend[1](layer.add_norm_cross.norm(x), memory)
    close(layer(x, memory), x + own + cross + layer.ffn(layer.add_norm_ffn.norm(x)))
    with pytest.raises(ValueError, match="needs a memory"):
        layer(x)


@pytest.mark.parametrize("norm_first", [False, True])
def test_add_norm_drops_the_sublayer_never_the_residual(norm_first: bool) -> None:
    frame, x = nn.AddNorm(D, norm_first, dropout=0.5), torch.randn(4, 50, D)
    close(frame(x, torch.zeros_like), x if norm_first else F.layer_norm(x, (D,)))
    if norm_first:  # a sublayer of ones arrives as zero or as two
        arrived = frame(x, torch.ones_like) - x
        assert abs((arrived.abs() < 1e-5).float().mean() - 0.5) < 0.05
        assert abs(((arrived - 2).abs() < 1e-5).float().mean() - 0.5) < 0.05


@pytest.mark.filterwarnings("error")  # torch warns where weight and input differ in dtype
@pytest.mark.parametrize("autocast", [False, True])
def test_rms_norm_keeps_the_dtype(autocast: bool) -> None:
    norm, x = roughen_weights(RMSNorm(8)), torch.randn(2, 3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        half = norm(x.bfloat16())
    assert half.dtype == torch.bfloat16
    close(half.float(), norm(x), 2e-2)


FORMULAS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * torch.sigmoid(x),
    "relu2": lambda x: x.clamp(min=0) ** 2,
}
GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", nn.ACTIVATIONS)
def test_feed_forward_is_its_formula_and_drops_inside_in_training(activation: str, bias: bool) -> None:
    part, x = roughen_weights(nn.FeedForward(D, 20, activation, 0.5, bias)), torch.randn(2, 3, D)
    inner, formula = F.linear(x, part.up_proj.weight, part.up_proj.bias), FORMULAS[GATED.get(activation, activation)]
    inner = inner * formula(part.gate_proj(x)) if activation in GATED else formula(inner)
    close(expected := part(x), F.linear(inner, part.down_proj.weight, part.down_proj.bias))
    assert not torch.allclose(part.train()(x), expected)


def test_stacks_drop_the_embeddings_in_training() -> None:
    """Embedding and position together; whole in evaluation."""
    x, pos = torch.full((4, 50, D), 2.0), torch.arange(50)[None]
    scheme = nn.POSITIONS["sinusoidal"](D, HEADS, D // HEADS, False)
    marked, stack = scheme.embed(x, pos), nn.EncoderStack([], scheme, dropout=0.5)
    out = stack.train()(x, pos)
    dropped = out == 0
    assert abs(dropped.float().mean() - 0.5) < 0.05
    assert torch.equal(out[~dropped], 2 * marked[~dropped])
    assert torch.equal(stack.eval()(x, pos), marked)


ATTENTION = partial(nn.MultiHeadAttention, d_model=8, n_heads=4)
ROPE, T5, FIRE = (partial(nn.POSITIONS[name], 16, 4, 4, True) for name in ("rope", "t5", "fire"))


@pytest.mark.parametrize(("build", "arguments", "key", "got"), [
    (ATTENTION, {"d_model": 10, "n_heads": 3}, "n_heads", "10.*3"), (ATTENTION, {"n_heads": 0}, "n_heads", "0"),
    (ATTENTION, {"d_model": 0}, "d_model", "0"), (ATTENTION, {"n_kv_heads": 3}, "n_kv_heads", "4 and 3"),
    (ATTENTION, {"n_kv_heads": 0}, "n_kv_heads", "4 and 0"), (ATTENTION, {"dropout": 1.0}, "attention_dropout", "1.0"),
    (ATTENTION, {"dropout": -0.1}, "attention_dropout", "-0.1"), (ATTENTION, {"window": 0}, "window", "0"),
    (ATTENTION, {"d_head": 0}, "d_head", "0"), (ATTENTION, {"softcap": 0.0}, "softcap", "0.0"),
    (nn.masks.window, {"size": -3, "causal": True}, "window", "-3"),
    (nn.masks.window, {"size": 2**31, "causal": True}, "window", "2147483648"),
    (nn.masks.window, {"size": 6, "causal": False}, "window", "odd.*6"),
    (nn.FeedForward, {"d_model": 8, "d_ff": 0}, "d_ff", "0"),
    (nn.TokenEmbedding, {"vocab_size": 0, "d_model": 8}, "vocab_size", "0"),
    (partial(nn.POSITIONS["learned"], 16, 4, 4, True), {"max_len": 0}, "position.max_len", "0"),
    (ROPE, {"base": 1.0}, "position.base", "1.0"),
    *((ROPE, {"factor": value}, "position.factor", str(value)) for value in (0.5, 1000001)),
    *((ROPE, {"fraction": value}, "position.fraction", str(value)) for value in (0.4, 0.0, 1.5)),
    (ROPE, {"fraction": 0.5, "scaling": "ntk"}, "position.scaling", "ntk"),
    (ROPE, {"scaling": "llama3", "low_freq_factor": 5.0}, "position.low_freq_factor", "5.0"),
    (ROPE, {"scaling": "llama3", "original_max_len": 0}, "position.original_max_len", "0"),
    (T5, {"buckets": 3}, "position.buckets", "3 and 128"),
    (T5, {"buckets": 64, "max_distance": 32}, "position.buckets", "the 32 exact ones, got 64 and 32"),
    (partial(T5, bidirectional=True), {"buckets": 64, "max_distance": 16}, "position.buckets", "64 and 16"),
    (FIRE, {"hidden": 0}, "position.hidden", "0"), (FIRE, {"threshold": 0.0}, "position.hidden and threshold", "0.0"),
    (partial(nn.POSITION_IDS["offset"], True), {"largest": -1}, "position_ids.largest", "-1"),
    *((partial(nn.POSITION_IDS["randomized"], True), {"range": 10, "longest": longest}, "position_ids.longest",
       f"{longest} and 10") for longest in (0, 11)),
])  # fmt: skip
def test_refusals_name_the_key_and_the_numbers(build: Any, arguments: dict, key: str, got: str) -> None:
    with pytest.raises(nn.OptionError, match=rf"model\.{key}.* {got}"):
        build(**arguments)
