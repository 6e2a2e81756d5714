"""Position schemes. What holds for one interface is tested on the whole registry: a new scheme gets it free."""

import pytest
import torch
from torch import Tensor

from minitx.nn import POSITIONS, MultiHeadAttention, NoPositions
from small_models import close, every_direction

D_MODEL, N_HEADS, D_HEAD = 16, 4, 4
every_scheme = pytest.mark.parametrize("name", POSITIONS)


@pytest.fixture
def scheme(name: str, causal: bool, roughen) -> NoPositions:
    return roughen(POSITIONS[name](D_MODEL, N_HEADS, D_HEAD, causal))


def rotate(scheme: NoPositions, x: Tensor, pos: Tensor) -> Tensor:
    return scheme.rotate(x, scheme.prepare(pos, pos))


def bias_of(scheme: NoPositions, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
    """As a stack calls it: with queries and keys for those only that say they read them."""
    return scheme.bias(*((q, k) if scheme.bias_per_layer else (None, None)), scheme.prepare(q_pos, k_pos))


@every_direction
@every_scheme
def test_only_none_ignores_the_order(name: str, scheme: NoPositions, roughen) -> None:
    part = roughen(MultiHeadAttention(D_MODEL, N_HEADS, position=scheme))
    x, order = torch.randn(2, 6, D_MODEL), torch.tensor([3, 0, 5, 1, 4, 2])
    one, other = (part(scheme.embed(each, torch.arange(6)[None])) for each in (x[:, order], x))
    assert torch.allclose(one, other[:, order], atol=1e-4) == (name == "none")


@every_direction
@every_scheme
def test_far_ids_in_half_precision(name: str, scheme: NoPositions) -> None:
    """A model kept in bf16 (trainer.precision bf16-true) must tell id 300 from id 301: numbers made of ids stay in
    fp32, in buffers, whose dtype a scheme does not change."""
    pos = torch.tensor([[0, 1, 2, 255, 300, 301, 499]])
    x, q = torch.randn(1, 7, D_MODEL), torch.randn(1, N_HEADS, 7, D_HEAD)
    embedded, rotated, bias = scheme.embed(x, pos), rotate(scheme, q, pos), bias_of(scheme, q, q, pos, pos)
    half, half_q = x.bfloat16(), q.bfloat16()
    assert scheme.embed(half, pos).dtype == rotate(scheme, half_q, pos).dtype == torch.bfloat16, "as under autocast"
    scheme.to(torch.bfloat16)
    close(scheme.embed(half, pos).float(), embedded, 5e-2)
    close(rotate(scheme, half_q, pos).float(), rotated, 5e-2)
    if bias is not None:
        close(bias_of(scheme, half_q, half_q, pos, pos).float(), bias, 5e-2)
