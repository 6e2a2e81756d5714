"""Flex attention, step by step on the CPU: the rules that its kernels are generated from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minitx.nn.attention import explicit_attention
from minitx.nn.kernels import _bend, _blocks, flex_attention

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
every_direction = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


@pytest.fixture(autouse=True)
def _no_grad():
    """Step by step on a CPU, torch's function knows no backward."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def both(q: Tensor, k: Tensor, v: Tensor, **options) -> tuple[Tensor, Tensor]:
    return flex_attention(q, k, v, compiled=False, **options), explicit_attention(q, k, v, None, None, 0.0, **options)[
        0
    ]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("softcap", [None, 0.8])
@pytest.mark.parametrize("window", [None, 1, 5, 999])
@pytest.mark.parametrize("tokens", [7, 150])
@every_direction
def test_equals_the_explicit_formula(
    causal: bool, tokens: int, window: int | None, softcap: float | None, kv_heads: int
) -> None:
    q = 3 * torch.randn(2, 4, tokens, 16)
    k, v = torch.randn(2, kv_heads, tokens, 16), torch.randn(2, kv_heads, tokens, 16)
    out, expected = both(q, k, v, causal=causal, window=window, softcap=softcap)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@every_direction
def test_half_precision(causal: bool) -> None:
    q, k, v = (torch.randn(2, 2, 40, 16).bfloat16() for _ in range(3))
    out, _ = both(q, k, v, causal=causal, window=5, softcap=2.0)
    _, exact = both(q.float(), k.float(), v.float(), causal=causal, window=5, softcap=2.0)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, rtol=3e-2, atol=3e-2)


@every_direction
def test_a_window_leaves_most_blocks_out(causal: bool) -> None:
    """Of 16 x 16 blocks a narrow window touches the diagonal and one beside it on each side it looks to."""
    blocks = _blocks(16 * 128, causal, 65, torch.device("cpu"))
    assert int(blocks.to_dense().sum()) == 16 + 15 * (1 if causal else 2)
    whole = _blocks(16 * 128, causal, None, torch.device("cpu"))
    assert whole is None if not causal else int(whole.to_dense().sum()) == 16 * 17 // 2


def test_blocks_and_bends_are_made_once() -> None:
    """Another function each time would be another kernel to compile each time."""
    assert _bend(2.0) is _bend(2.0)
    assert _bend(2.0) is not _bend(3.0)
    assert _blocks(64, True, 3, torch.device("cpu")) is _blocks(64, True, 3, torch.device("cpu"))


def test_blocks_made_while_predicting_serve_training() -> None:
    """A tensor made in inference mode could not be saved for a backward pass."""
    _blocks.cache_clear()
    with torch.inference_mode():
        blocks = _blocks(96, True, 3, torch.device("cpu"))
    parts = [part for part in vars(blocks).values() if isinstance(part, Tensor)]
    assert parts
    assert not any(part.is_inference() for part in parts)
