"""Scaled dot-product attention: every path computes the formula, whatever limits it and in every precision."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.nn import kernels, masks, scaled_dot_product_attention
from minitx.nn.kernels import CPU_HALF_KERNELS
from small_models import close, every_direction, keep_of

HALF = (torch.bfloat16, torch.float16)
both_paths = pytest.mark.parametrize("path", ["fused", "explicit"])
every_mask = pytest.mark.parametrize("hidden", ["none", "padding", "heads"])


@pytest.fixture(params=CPU_HALF_KERNELS)
def half_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel of training in half precision."""
    monkeypatch.setattr(kernels, "training_kernel", request.param)
    return str(request.param)


def run(path: str, *args: Any, **options: Any) -> Tensor:
    """The output of one of the two paths."""
    if path == "fused":
        return scaled_dot_product_attention(*args, **options)
    return scaled_dot_product_attention(*args, return_weights=True, **options)[0]


def make_mask(hidden: str, keys: int) -> Tensor | None:
    """Padding of each row's own, or what each head may see; the last row of the batch sees nothing at all."""
    if hidden == "none":
        return None
    if hidden == "padding":
        return (torch.arange(keys) < torch.tensor([[keys], [2], [0]]))[:, None, None, :]
    mask = torch.rand(3, 4, 1, keys) < 0.6
    mask[2, 1:] = False
    return mask


def allowed(mask: Tensor | None, shape: tuple[int, ...], causal: bool, window: int | None) -> Tensor:
    """The convention written out: bool of shape [B, H, T, S]."""
    queries, keys = shape[2:]
    seen = torch.ones(shape).bool() if mask is None else mask.expand(shape).clone()
    for t in range(queries):
        for s in range(keys):
            place = keys - queries + t
            near = True
            if window is not None:
                near = place - s < window if causal else abs(place - s) <= window // 2
            if not near or (causal and s > place):
                seen[:, :, t, s] = False
    return seen


def by_formula(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor | None, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """In double precision; a row without keys gives zeros."""
    group = q.size(1) // k.size(1)
    q, k, v = q.double(), k.double().repeat_interleave(group, dim=1), v.double().repeat_interleave(group, dim=1)
    scores = q @ k.mT / math.sqrt(q.size(-1))
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    exponentials = (scores if bias is None else scores + bias.double()).exp() * seen
    weights = exponentials / exponentials.sum(-1, keepdim=True).clamp(min=1e-300)
    return weights @ v, weights


@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 1, 3, 99])
@every_direction
@every_mask
def test_every_path_is_the_formula(
    hidden: str, causal: bool, window: int | None, softcap: float | None, biased: bool
) -> None:
    for kv_heads, queries in ((4, 6), (2, 6), (1, 6), (2, 2), (1, 1)):
        q = 3 * torch.randn(3, 4, queries, 8)
        k, v = torch.randn(3, kv_heads, 6, 8), torch.randn(3, kv_heads, 6, 8)
        bias = torch.randn(1, 4, queries, 6) if biased else None
        mask = make_mask(hidden, 6)
        options = {"mask": mask, "bias": bias, "causal": causal, "window": window, "softcap": softcap}
        seen = allowed(mask, (3, 4, queries, 6), causal, window)
        expected, expected_weights = by_formula(q, k, v, seen, bias, softcap)
        plain = scaled_dot_product_attention(q, k, v, **options)
        explicit, weights = scaled_dot_product_attention(q, k, v, return_weights=True, **options)
        close(plain, expected)
        close(explicit, expected)
        close(weights, expected_weights)
        assert (weights[~seen] == 0).all()
        assert (plain[(~seen).all(-1)] == 0).all()


def test_gradients_of_both_paths_are_the_same() -> None:
    q = torch.randn(3, 4, 6, 8, requires_grad=True)
    k, v = (torch.randn(3, 2, 6, 8, requires_grad=True) for _ in range(2))
    bias, towards = torch.randn(1, 4, 6, 6, requires_grad=True), torch.randn(3, 4, 6, 8)
    options = {"mask": make_mask("padding", 6), "bias": bias, "causal": True, "window": 3}
    one = torch.autograd.grad(scaled_dot_product_attention(q, k, v, **options), (q, k, v, bias), towards)
    explicit, _ = scaled_dot_product_attention(q, k, v, return_weights=True, **options)
    for mine, other in zip(torch.autograd.grad(explicit, (q, k, v, bias), towards), one, strict=True):
        close(mine, other)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("path", ["recorded", *CPU_HALF_KERNELS])
def test_rows_with_nothing_to_attend_give_zeros_and_finite_gradients(
    path: str, biased: bool, dropout: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 0 of the batch is whole, row 1 is all padding, row 2 is padded on the left under the causal rule.

    Anomaly detection watches the backward pass inside, too: a NaN that is masked away later still counts.
    """
    length, recorded = 5, path == "recorded"
    if not recorded:
        monkeypatch.setattr(kernels, "training_kernel", path)
    q, k, v = (torch.randn(3, 1, length, 4, dtype=dtype, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 1, length, length, dtype=dtype, requires_grad=True) if biased else None
    keep = torch.ones(3, length, dtype=torch.bool)
    keep[1], keep[2, :2] = False, False
    mask = masks.key_padding(keep)
    inputs = [q, k, v] if bias is None else [q, k, v, bias]
    with torch.autograd.set_detect_anomaly(True):
        out = run("explicit" if recorded else "fused", q, k, v, mask, bias, dropout, causal=True)
        gradients = torch.autograd.grad(out.float().square().sum(), inputs)
    if recorded:
        _, weights = scaled_dot_product_attention(q, k, v, mask, bias, return_weights=True, causal=True)
        assert (weights[1] == 0).all()
        assert (weights[2, :, :2] == 0).all()
        close(weights[2, :, 2:].float().sum(-1), torch.ones(1, length - 2), 1e-5 if dtype == torch.float32 else 2e-2)
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert (out[1] == 0).all()
    assert (out[2, :, :2] == 0).all()
    assert (out[0] != 0).any(-1).sum() > length // 4  # the whole row is not zeroed with them
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[2][1] == 0).all()  # values nobody sees learn nothing
    assert gradients[2][0].abs().sum() > 0


@both_paths
def test_more_queries_than_keys_under_the_causal_rule(path: str) -> None:
    """Right alignment leaves the first T - S queries before every key."""
    q, k, v = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    out = run(path, q, k, v, causal=True)
    assert (out[:, :, :2] == 0).all()
    close(out[:, :, 2:], F.scaled_dot_product_attention(q[:, :, 2:], k, v, is_causal=True))


@both_paths
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_dropout_drops_weights_and_returns_them_whole(softcap: float | None, path: str) -> None:
    """With the identity for values the output *is* the dropped weights: each is zero or scaled up."""
    length, dropout = 40, 0.25
    q, k = torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 8)
    v = torch.eye(length).expand(2, 2, -1, -1)
    _, whole = scaled_dot_product_attention(q, k, v, return_weights=True, softcap=softcap)
    _, weights = scaled_dot_product_attention(q, k, v, dropout=dropout, return_weights=True, softcap=softcap)
    assert torch.equal(weights, whole)
    out = run(path, q, k, v, dropout=dropout, softcap=softcap)
    dropped = out == 0
    assert abs(dropped.float().mean() - dropout) < 0.05
    close(out[~dropped], whole[~dropped] / (1 - dropout))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("softcap", [0.5, 3.0])
def test_no_score_leaves_the_cap(softcap: float, dtype: torch.dtype) -> None:
    """However large the queries, two weights of a row differ by no more than a factor of exp(2 softcap)."""
    q, k, v = (torch.randn(2, 2, 7, 8).to(dtype) for _ in range(3))
    _, weights = scaled_dot_product_attention(1000 * q, k, v, return_weights=True, softcap=softcap)
    ratio = weights.float().amax(-1) / weights.float().amin(-1)
    slack = 1.0001 if dtype == torch.float32 else 1.05
    assert (ratio <= math.exp(2 * softcap) * slack).all()
    assert ratio.max() > math.exp(2 * softcap) * 0.9  # and the cap is reached
    _, free = scaled_dot_product_attention(1000 * q, k, v, return_weights=True)
    assert free.float().amin() == 0


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("softcap", [None, 2.0])
@every_direction
@pytest.mark.usefixtures("half_kernel")
def test_half_precision_is_close_to_the_formula(
    causal: bool, softcap: float | None, biased: bool, dtype: torch.dtype
) -> None:
    length = 17
    q, k, v = (torch.randn(2, 2, length, 16).to(dtype).requires_grad_() for _ in range(3))
    bias = torch.randn(1, 2, length, length).to(dtype) if biased else None
    seen = masks.build(*masks.rules(causal, None), queries=length, keys=length) if causal else torch.ones(1).bool()
    exact, _ = by_formula(q, k, v, seen, bias, softcap)
    options: dict[str, Any] = {"bias": bias, "causal": causal, "softcap": softcap}
    for autocast in (False, True):
        with torch.autocast("cpu", dtype=dtype, enabled=autocast):
            fused = scaled_dot_product_attention(q, k, v, **options)
            explicit, weights = scaled_dot_product_attention(q, k, v, return_weights=True, **options)
        assert fused.dtype == explicit.dtype == weights.dtype == dtype
        close(fused, exact, 2e-2 if softcap is None else 4e-2)
        close(explicit, exact, 2e-2 if softcap is None else 4e-2)
        close(weights.float().sum(-1), torch.ones(2, 2, length), 2e-2)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padding"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("length", [17, 205])
@pytest.mark.usefixtures("half_kernel")
def test_training_in_bf16_is_close_to_fp64(length: int, causal: bool, padded: bool, kv_heads: int) -> None:
    """The output and all gradients."""
    parts = [torch.randn(2, heads, length, 16) for heads in (4, kv_heads, kv_heads)]
    towards = torch.randn(2, 4, length, 16)
    mask = masks.key_padding(keep_of(length, length - 1)) if padded else None

    def results(dtype: torch.dtype) -> list[Tensor]:
        q, k, v = (part.bfloat16().to(dtype).requires_grad_() for part in parts)
        out = scaled_dot_product_attention(q, k, v, mask, causal=causal)
        return [out, *torch.autograd.grad(out, (q, k, v), towards.bfloat16().to(dtype))]

    for found, exact in zip(results(torch.bfloat16), results(torch.float64), strict=True):
        assert found.dtype == torch.bfloat16
        assert (found.double() - exact).norm() < 1e-2 * exact.norm()


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_inference_in_half_precision_loses_only_the_last_rounding(
    half_kernel: str, dtype: torch.dtype, autocast: bool
) -> None:
    """On a CPU it is computed in fp32, whatever trains, so the result is the exact one rounded once."""
    q, k, v = (torch.randn(2, 4, 17, 16).to(dtype) for _ in range(3))
    bias, keep = torch.randn(1, 4, 17, 17).to(dtype), keep_of(17, 16)
    exact, _ = by_formula(q, k, v, allowed(masks.key_padding(keep), (2, 4, 17, 17), True, None), bias, None)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        out = scaled_dot_product_attention(q, k, v, masks.key_padding(keep), bias, causal=True)
    torch.testing.assert_close(out.double(), exact, rtol=torch.finfo(dtype).eps / 2, atol=1e-5)


def test_large_scores_do_not_overflow_fp16_when_recorded() -> None:
    """Scores of size 100 000 / sqrt(64) are harmless to the fused path; recording must not make them NaN."""
    q = torch.full((1, 1, 3, 64), 40.0, dtype=torch.float16)
    v = torch.randn(1, 1, 3, 64, dtype=torch.float16)
    fused = scaled_dot_product_attention(q, q, v)
    explicit, _ = scaled_dot_product_attention(q, q, v, return_weights=True)
    assert fused.isfinite().all()
    close(explicit, fused, 1e-2)


@both_paths
def test_double_precision_stays_double(path: str) -> None:
    """trainer.precision 64-true is offered, and gradcheck needs it."""
    q, k, v = (torch.randn(2, 2, 6, 8, dtype=torch.double) for _ in range(3))
    exact, exact_weights = by_formula(q, k, v, torch.ones(6, 6).bool(), None, None)
    _, weights = scaled_dot_product_attention(q, k, v, return_weights=True)
    out = run(path, q, k, v)
    close(weights, exact_weights, 1e-12)
    assert out.dtype == torch.double
    close(out, exact, 1e-12)
