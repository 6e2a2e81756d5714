"""Position schemes: what holds for every one in the registry, and relative ones against independent implementations."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from minitx.nn import POSITIONS, MultiHeadAttention, NoPositions
from minitx.nn.bias_positions import AlibiPositions, FirePositions, T5Positions, TransformerXLPositions
from minitx.nn.positions import PolarPositions, RotaryPositions
from small_models import close, every_direction, roughen_weights

D, H, K = 32, 4, 8
POS = torch.arange(9)[None]
every_scheme = pytest.mark.parametrize("name", POSITIONS)


def rotate(scheme: NoPositions, x: Tensor, pos: Tensor) -> Tensor:
    return scheme.rotate(x, scheme.prepare(pos, pos))


def bias_of(scheme: NoPositions, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
    """As a stack calls it: with queries and keys for those only that say they read them."""
    return scheme.bias(*((q, k) if scheme.bias_per_layer else (None, None)), scheme.prepare(q_pos, k_pos))


@every_direction
@every_scheme
def test_only_none_ignores_the_order(name: str, causal: bool) -> None:
    scheme = POSITIONS[name](D, H, K, causal)
    part = roughen_weights(MultiHeadAttention(D, H, position=scheme))
    x, order = torch.randn(2, 6, D), torch.tensor([3, 0, 5, 1, 4, 2])
    one, other = (part(scheme.embed(each, torch.arange(6)[None])) for each in (x[:, order], x))
    assert torch.allclose(one, other[:, order], atol=1e-4) == (name == "none")


@every_direction
@every_scheme
def test_far_ids_in_half_precision(name: str, causal: bool) -> None:
    """Kept in bf16, a model must tell id 300 from id 301: numbers made of ids stay in fp32, in buffers."""
    scheme, pos = roughen_weights(POSITIONS[name](D, H, K, causal)), torch.tensor([[0, 1, 2, 255, 300, 301, 499]])
    x, q = torch.randn(1, 7, D), torch.randn(1, H, 7, K)
    embedded, rotated, bias = scheme.embed(x, pos), rotate(scheme, q, pos), bias_of(scheme, q, q, pos, pos)
    half, half_q = x.bfloat16(), q.bfloat16()
    assert scheme.embed(half, pos).dtype == rotate(scheme, half_q, pos).dtype == torch.bfloat16, "as under autocast"
    scheme.to(torch.bfloat16)
    close(scheme.embed(half, pos).float(), embedded, 5e-2)
    close(rotate(scheme, half_q, pos).float(), rotated, 5e-2)
    if bias is not None:
        close(bias_of(scheme, half_q, half_q, pos, pos).float(), bias, 5e-2)


def heads(length: int = 9, groups: int = H) -> Tensor:
    return torch.randn(2, groups, length, K)


def test_rope_scaling_stretches_the_slow_waves_only() -> None:
    plain, stretched = RotaryPositions(D, H, K, True), RotaryPositions(D, H, K, True, scaling="ntk", factor=8.0)
    ratio = plain.frequencies / stretched.frequencies
    assert (ratio[0].item(), ratio[-1].item()) == (pytest.approx(1.0), pytest.approx(8.0, rel=1e-4))
    assert (ratio.diff() > 0).all()
    llama3 = RotaryPositions(D, H, K, True, scaling="llama3", factor=8.0, original_max_len=1)
    close(llama3.frequencies, plain.frequencies / 8.0)  # none turns within one token


@pytest.mark.parametrize("count", [1, 2, 4, 6, 8, 12, 16])
def test_alibi_equals_bloom(count: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 9), count, torch.float32).view(1, count, 1, 9)
    # Theirs adds slope x key position, which differs from ours by a constant in each row: softmax does not see it.
    shift = AlibiPositions(D, count, K, True).prepare(POS, POS) - theirs
    torch.testing.assert_close(shift.tril(), shift[..., :1].expand_as(shift).tril(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [4, 32])
def test_t5_buckets_of_both_directions_are_those_of_an_encoder(size: int) -> None:
    distance = torch.arange(-300, 301)
    buckets = [T5Positions(D, H, K, causal, size, bidirectional=True).bucket(distance) for causal in (True, False)]
    assert torch.equal(*buckets)
    assert not torch.equal(T5Positions(D, H, K, True, size).bucket(distance), buckets[0])


@pytest.mark.parametrize("pos", [POS, torch.tensor([[3, 14, 15, 92, 65, 35, 89, 79, 32], [0, 0, 0, 0, 1, 2, 3, 4, 5]])])
def test_transformer_xl_and_its_gradients_are_those_of_every_distance(pos: Tensor) -> None:
    scheme = TransformerXLPositions(D, H, K, True)
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    q, k = heads(4).requires_grad_(), heads(groups=2).requires_grad_()
    given = [q, k, *scheme.parameters()]
    towards = torch.randn(2, H, 4, 9)
    bias = scheme.bias(q, k, scheme.prepare(pos[:, 5:], pos))
    # The waves of each pair's own distance, in float64.
    angles = (pos[:, 5:, None] - pos[:, None, :]).double()[..., None] * scheme.frequencies.double()
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    r = (waves @ scheme.r_proj.weight.double().mT).unflatten(-1, (H, K))  # [B, T, S, H, K]
    asked = (q + scheme.distance[:, None]).double()
    scores = torch.einsum("bhtk,btshk->bhts", asked, r.expand(len(q), -1, -1, -1, -1))
    content = scheme.content[:, None].double() @ k.repeat_interleave(2, dim=1).double().mT
    expected = (scores + content) / math.sqrt(K)
    torch.testing.assert_close(bias, expected.float(), atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad(bias, given, towards)
    torch.testing.assert_close(found, torch.autograd.grad(expected, given, towards.double()), atol=2e-5, rtol=1e-4)


def test_pope_is_the_sum_of_the_paper() -> None:
    """The scaled score: softplus(q) softplus(k) cos(distance x base^(-c / K)) over the dimensions c, by sqrt(K)."""
    pope, q, k = PolarPositions(D, H, K, True, base=100.0), heads(), heads()
    prepared, softplus, distance = pope.prepare(POS, POS), torch.nn.functional.softplus, POS.mT - POS
    rotated_q, rotated_k = pope.rotate(q, prepared), pope.rotate(k, prepared)
    cosines = torch.cos(distance[..., None] * 100.0 ** (-torch.arange(K) / K))  # [T, S, K]
    expected = torch.einsum("bhik,bhjk,ijk->bhij", softplus(q), softplus(k), cosines) / math.sqrt(K)
    torch.testing.assert_close(rotated_q @ rotated_k.mT / math.sqrt(rotated_q.size(-1)), expected)


@pytest.mark.parametrize("threshold", [4.0, 512.0])
def test_fire_is_the_function_of_the_paper(threshold: float) -> None:
    fire = FirePositions(D, H, K, True, hidden=5, threshold=threshold)
    bias = fire.prepare(POS, POS)[0]
    for i, j in product(range(9), repeat=2):
        share = math.log(0.1 * abs(i - j) + 1) / math.log(0.1 * max(i, j, threshold) + 1)
        expected = (share * fire.slopes + fire.offsets).clamp(min=0) @ fire.readout + fire.shift
        torch.testing.assert_close(bias[:, i, j], expected, atol=1e-4, rtol=1e-4)
