"""Flex attention, step by step on the CPU: the rules that its kernels are generated from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from minitx.nn.attention import explicit_attention
from minitx.nn.flex import _bend, _blocks, _rule, flex_attention

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:.*(lru_cache|boxed arguments)"),
]
every_direction = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


@pytest.fixture(autouse=True)
def _no_grad():
    """Step by step on a CPU, torch's function knows no backward."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def explicit(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    return explicit_attention(q, k, v, None, None, 0.0, **options)[0]


def both(q: Tensor, k: Tensor, v: Tensor, **options) -> tuple[Tensor, Tensor]:
    return flex_attention(q, k, v, compiled=False, **options), explicit(q, k, v, **options)


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


@every_direction
@pytest.mark.parametrize("window", [None, 1, 127, 129, 257, 999])
@pytest.mark.parametrize("tokens", [5, 128, 129, 640, 700])
def test_blocks_are_those_of_create_block_mask(tokens: int, window: int | None, causal: bool) -> None:
    """Torch's own way, which looks at every pair."""
    blocks, rule = _blocks(tokens, causal, window, torch.device("cpu")), _rule(causal, window)
    if rule is None:
        assert blocks is None
        return
    theirs = torch_flex.create_block_mask(lambda b, h, q, k: rule(q, k), None, None, tokens, tokens, device="cpu")
    assert (blocks.seq_lengths, blocks.BLOCK_SIZE) == (theirs.seq_lengths, theirs.BLOCK_SIZE)
    for name, part in vars(theirs).items():
        if isinstance(part, Tensor):
            torch.testing.assert_close(getattr(blocks, name), part, rtol=0, atol=0, msg=name)


def test_a_compiled_step_computes_blocks_once_and_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers, two lengths, with gradients; the compiler ignores what is cached."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)  # step by step, a CPU can do backward
    forwards = []

    def record(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        forwards.append(graph)
        return graph.forward

    def layers(attention: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for _ in range(3):
            q = attention(q, k, v, causal=True, window=5, softcap=2.0)
        return q

    backend = aot_autograd(
        fw_compiler=record,
        bw_compiler=lambda graph, inputs: graph.forward,
        partition_fn=min_cut_rematerialization_partition,
    )
    compiled = torch.compile(lambda *given: layers(flex_attention, *given), backend=backend, fullgraph=True)
    for tokens in (200, 300):
        with torch.enable_grad():
            given = [torch.randn(1, 2, tokens, 16, requires_grad=True) for _ in range(3)]
            out, expected = compiled(*given), layers(explicit, *given)
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
            found, wanted = (torch.autograd.grad(each.sum(), given) for each in (out, expected))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert len(forwards) == 2
    for graph, tokens in zip(forwards, (200, 300), strict=True):
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        assert sum("sort" in str(node.target) for node in nodes) == 4, "once for all layers"
        shapes = [node.meta["val"].shape for node in nodes if isinstance(node.meta.get("val"), Tensor)]
        assert shapes
        assert not [shape for shape in shapes if [int(size) for size in shape[-2:]] == [tokens, tokens]]


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
