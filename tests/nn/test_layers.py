"""The parts around attention: layers, norms, the feed-forward network, and dropout where it belongs."""

import math

import pytest
import torch
import torch.nn.functional as F

from minitx.nn import (
    ACTIVATIONS,
    POSITIONS,
    AddNorm,
    DecoderLayer,
    EncoderLayer,
    EncoderStack,
    FeedForward,
    MultiHeadAttention,
)
from minitx.nn.layers import Layer
from minitx.nn.norms import RMSNorm
from small_models import close, roughen_weights

D, HEADS = 12, 3


@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_parallel_sublayers_read_the_input_of_their_layer(kind: type[Layer]) -> None:
    """Without a stack nothing is padding, and a decoder's layer is causal."""
    attend = [MultiHeadAttention(D, HEADS) for _ in range(2)]
    layer = roughen_weights(kind(attend[0], FeedForward(D, 20), D, attend[1], parallel=True))
    x, memory = torch.randn(3, 5, D), torch.randn(3, 7, D)
    own = attend[0](getattr(layer, kind.first_norm).norm(x), causal=kind is DecoderLayer)
    cross = attend[1](layer.add_norm_cross.norm(x), memory)
    close(layer(x, memory), x + own + cross + layer.ffn(layer.add_norm_ffn.norm(x)))
    with pytest.raises(ValueError, match="needs a memory"):
        layer(x)


@pytest.mark.parametrize("norm_first", [False, True])
def test_add_norm_drops_the_sublayer_never_the_residual(norm_first: bool) -> None:
    frame = AddNorm(D, norm_first, dropout=0.5)
    x = torch.randn(4, 50, D)
    silent = frame(x, torch.zeros_like)
    close(silent, x if norm_first else F.layer_norm(x, (D,)))
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
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_is_its_formula_and_drops_inside_in_training(activation: str, bias: bool) -> None:
    part, x = roughen_weights(FeedForward(D, 20, activation, 0.5, bias)), torch.randn(2, 3, D)
    inner, formula = F.linear(x, part.up_proj.weight, part.up_proj.bias), FORMULAS[GATED.get(activation, activation)]
    assert (part.gate_proj is not None) == (activation in GATED)
    inner = inner * formula(part.gate_proj(x)) if activation in GATED else formula(inner)
    close(expected := part(x), F.linear(inner, part.down_proj.weight, part.down_proj.bias))
    assert not torch.allclose(part.train()(x), expected)
    assert (part.up_proj.bias is not None) == (part.down_proj.bias is not None) == bias


def test_stacks_drop_the_embeddings_in_training() -> None:
    """Embedding and position together; whole in evaluation."""
    x, pos = torch.full((4, 50, D), 2.0), torch.arange(50)[None]
    scheme = POSITIONS["sinusoidal"](D, HEADS, D // HEADS, False)
    marked, stack = scheme.embed(x, pos), EncoderStack([], scheme, dropout=0.5)
    out = stack.train()(x, pos)
    dropped = out == 0
    assert abs(dropped.float().mean() - 0.5) < 0.05
    assert torch.equal(out[~dropped], 2 * marked[~dropped])
    assert torch.equal(stack.eval()(x, pos), marked)
