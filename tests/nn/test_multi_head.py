"""Beside a cache, queries, keys and values come from one product; the numbers are those of three."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from minitx.nn import Cache, MultiHeadAttention
from minitx.nn.cache import LayerCache
from minitx.nn.multi_head import _joined

VOCAB = 11
shapes = pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"n_kv_heads": 2}, {"n_kv_heads": 1, "d_head": 6, "qk_norm": True}, {"softcap": 1.0}],
    ids=str,
)


@pytest.fixture(autouse=True)
def _no_grad():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def close(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, check_dtype=False)


def draw(*shape: int) -> Tensor:
    return torch.randint(0, VOCAB, shape)


@shapes
def test_one_product_gives_the_numbers_of_three(options: dict, roughen) -> None:
    part, x = roughen(MultiHeadAttention(12, 4, **options)), torch.randn(2, 5, 12)
    joined, apart = part._queries_keys_values(x, LayerCache(Cache())), part._queries_keys_values(x, None)
    for one, other, heads in zip(joined, apart, (4, part.n_kv_heads, part.n_kv_heads), strict=True):
        assert one.shape == other.shape == (2, heads, 5, part.d_head)
        close(one, other)
    close(part(x, causal=True, cache=Cache().layer(0)), part(x, causal=True))


@shapes
@pytest.mark.parametrize("kind", ["autocast", "weights"])
def test_in_half_precision(options: dict, kind: str, roughen) -> None:
    part, x = roughen(MultiHeadAttention(12, 4, **options)), torch.randn(2, 5, 12)
    exact = part(x, causal=True)
    if kind == "weights":
        part, x = part.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        out = part(x, causal=True, cache=Cache().layer(0))
    assert out.dtype == torch.bfloat16
    close(out, exact, 6e-2)


def test_weights_are_joined_once_for_each_layer(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache, ids = tiny("decoder_only", "rope"), Cache(), draw(2, 6)
    made = []
    cat = torch.cat

    def counted(tensors, *args, **kwargs):
        if any(isinstance(part, nn.Parameter) and part.dim() == 2 for part in tensors):
            made.append(len(tensors))
        return cat(tensors, *args, **kwargs)

    monkeypatch.setattr(torch, "cat", counted)
    for step in range(4):
        model.step(ids[:, step : step + 1], cache)
    assert made == [3, 3]  # two layers, three maps each
    first = cache.layer(0).joined(lambda: pytest.fail("joined again"))
    assert not first[0].requires_grad


def test_three_maps_are_left_alone_without_a_cache(tiny) -> None:
    """Training in full precision goes through the three maps, each with its hooks."""
    model, calls = tiny("decoder_only"), []
    for name in ("q_proj", "k_proj", "v_proj"):
        part = getattr(model.decoder.layers[0].self_attn, name)
        part.register_forward_hook(lambda *_, name=name: calls.append(name))
    model(draw(1, 4))
    assert calls == ["q_proj", "k_proj", "v_proj"]


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_changed_weights_are_seen_by_the_next_cache(architecture: str, tiny) -> None:
    """As between two validations of one training."""
    model, ids = tiny(architecture, "rope"), draw(2, 6)
    source = () if architecture == "decoder_only" else (draw(2, 4),)
    for _ in range(2):
        cache = model.start(*source)
        steps = torch.cat([model.step(ids[:, step : step + 1], cache) for step in range(6)], dim=1)
        close(steps, model(*source, ids))
        for layer in model.decoder.layers:
            layer.self_attn.k_proj.weight += torch.randn_like(layer.self_attn.k_proj.weight)
            layer.self_attn.v_proj.bias += 1.0


def test_joined_is_the_maps_below_one_another() -> None:
    part, x = MultiHeadAttention(12, 4, n_kv_heads=2), torch.randn(3, 12)
    expected = torch.cat([each(x) for each in (part.q_proj, part.k_proj, part.v_proj)], dim=-1)
    close(F.linear(x, *_joined((part.q_proj, part.k_proj, part.v_proj))), expected)
    assert _joined((nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False)))[1] is None


@shapes
@pytest.mark.parametrize("memory", [None, torch.randn(2, 7, 12)], ids=["self", "cross"])
def test_gradients_under_autocast_are_those_of_each_map(options: dict, memory: Tensor | None, roughen) -> None:
    """One product, cut in three for self-attention and in two for a memory, brings each map its own gradient."""
    part, x = roughen(MultiHeadAttention(12, 4, **options)), torch.randn(2, 5, 12)

    def gradients(mixed: bool) -> list[Tensor]:
        with torch.enable_grad():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
                out = part(x, memory, causal=memory is None)
            return torch.autograd.grad(out.float().square().mean(), list(part.parameters()))

    for (name, _), one, other in zip(part.named_parameters(), gradients(True), gradients(False), strict=True):
        if name != "k_proj.bias":  # moves all scores of a query alike: nothing but noise
            close(one / other.norm(), other / other.norm(), 5e-2)


def test_queries_keys_and_values_share_a_dtype_under_cuda_autocast() -> None:
    """Autocast's rules for CUDA, without a GPU: its RMSNorm returns fp32, whatever it is given."""
    attention = MultiHeadAttention(16, 4, n_kv_heads=2, qk_norm=True)
    found = []
    attention.attention = lambda q, k, v, **options: found.append((q.dtype, k.dtype, v.dtype)) or q
    with FakeTensorMode():
        x = torch.empty(2, 5, 16, device="cuda")
        weights = {name: torch.empty(weight.shape, device="cuda") for name, weight in attention.named_parameters()}
        torch.set_autocast_enabled("cuda", True)  # torch.autocast itself insists on a GPU
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            torch.func.functional_call(attention, weights, (x,), {"pos": torch.empty(1, 5, device="cuda")})
            torch.func.functional_call(attention, weights, (x, x))
        finally:
            torch.set_autocast_enabled("cuda", False)
    assert found == [(torch.bfloat16,) * 3] * 2
