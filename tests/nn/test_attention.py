"""Scaled dot-product attention: every path computes the formula, whatever limits it and in every precision."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from minitx.nn import kernels, masks, scaled_dot_product_attention
from minitx.nn.kernels import CPU_HALF_KERNELS
from small_models import close, every_direction, keep_of, pairwise

HALF = (torch.bfloat16, torch.float16)


def run(path: str, *args: Any, **options: Any) -> Tensor:
    """The output of one of the two paths."""
    if path == "fused":
        return scaled_dot_product_attention(*args, **options)
    return scaled_dot_product_attention(*args, return_weights=True, **options)[0]


def make_mask(hidden: str, keys: int) -> Tensor | None:
    """Padding of each row's own, or what each head may see; the last row of the batch sees nothing at all."""
    if hidden == "none":
        return None
    if hidden == "nothing":
        return torch.tensor(True)
    if hidden == "keys":
        return torch.arange(keys) != 1  # [S]: the same ones for all
    if hidden == "padding":
        return (torch.arange(keys) < torch.tensor([[keys], [2], [0]]))[:, None, None, :]
    mask = torch.rand(3, 4, 1, keys) < 0.6
    mask[2, 1:] = False
    return mask


def allowed(mask: Tensor | None, shape: tuple[int, ...], causal: bool, window: int | None) -> Tensor:
    """The convention written out: bool of shape [B, H, T, S]."""
    queries, keys = shape[2:]
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)  # of a right-aligned query and a key
    rule = distance >= 0 if causal else distance < keys
    if window is not None:
        rule = rule & (distance < window if causal else distance.abs() <= window // 2)
    return (rule if mask is None else rule & mask).expand(shape)


def by_formula(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Any, softcap: Any) -> tuple[Tensor, Tensor]:
    """In double precision; a row without keys gives zeros, also the first T - S of more queries than keys."""
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
@pytest.mark.parametrize("hidden", ["none", "nothing", "keys", "padding", "heads"])
def test_every_path_is_the_formula(hidden: str, causal: bool, window: Any, softcap: Any, biased: bool) -> None:
    for kv_heads, queries in ((4, 6), (2, 6), (1, 6), (2, 2), (1, 1), (2, 9)):
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
        if mask is not None:
            added = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)
            close(scaled_dot_product_attention(q, k, v, **options | {"mask": added}), expected)


@pairwise({
    "dtype": [torch.float32, *HALF], "dropout": [0.0, 0.5], "biased": [False, True],
    "path": ["recorded", *CPU_HALF_KERNELS],
})  # fmt: skip
def test_rows_with_nothing_to_attend_give_zeros_and_finite_gradients(
    path: str, biased: bool, dropout: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 0 is whole, 1 all padding, 2 padded on the left under the causal rule. A NaN counts even if masked later."""
    length, recorded = 5, path == "recorded"
    if not recorded:
        monkeypatch.setattr(kernels, "training_kernel", path)
    q, k, v = (torch.randn(3, 1, length, 4, dtype=dtype, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 1, length, length, dtype=dtype, requires_grad=True) if biased else None
    keep = torch.ones(3, length, dtype=torch.bool)
    keep[1], keep[2, :2] = False, False
    mask = masks.key_padding(keep)
    with torch.autograd.set_detect_anomaly(True):
        out = run("explicit" if recorded else "fused", q, k, v, mask, bias, dropout, causal=True)
        gradients = torch.autograd.grad(out.float().square().sum(), [q, k, v] if bias is None else [q, k, v, bias])
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert (out[1] == 0).all()
    assert (out[2, :, :2] == 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[2][1] == 0).all()  # values nobody sees learn nothing


@pytest.mark.parametrize("path", ["fused", "explicit"])
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


@pairwise({"dtype": [torch.float64, torch.float32, *HALF], "path": ["recorded", *CPU_HALF_KERNELS], "size": [17, 205]})
def test_output_and_gradients_are_as_exact_as_the_dtype(size: int, path: str, dtype: Any, monkeypatch: Any) -> None:
    """With and without padding, bias and a cap, for grouped heads too, and the same under autocast."""
    monkeypatch.setattr(kernels, "training_kernel", path)  # of half precision
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 2e-2)
    for kv_heads, padded, biased, causal, softcap in (
        (4, True, False, True, None), (2, False, True, False, None), (2, True, True, True, 2.0),
    ):  # fmt: skip
        shapes = (4, size, 16), (kv_heads, size, 16), (kv_heads, size, 16), (4, size, size)
        parts = [torch.randn(2, *shape).to(dtype).requires_grad_() for shape in shapes]
        mask, towards = masks.key_padding(keep_of(size, size - 1)) if padded else None, torch.randn(2, *shapes[0])
        exact = [part.detach().double().requires_grad_() for part in parts]
        seen = allowed(mask, (2, 4, size, size), causal, None)
        out, weights = by_formula(*exact[:3], seen, exact[3] if biased else None, softcap)
        expected = [out, *torch.autograd.grad(out, exact[: 3 + biased], towards.double())]
        with torch.autocast("cpu", dtype=dtype if dtype in HALF else None, enabled=dtype in HALF and padded):
            options = {"bias": parts[3] if biased else None, "causal": causal, "softcap": softcap}
            out = run("explicit" if path == "recorded" else "fused", *parts[:3], mask, **options)
            recorded = scaled_dot_product_attention(*parts[:3], mask, return_weights=True, **options)[1]
        found = [out, *torch.autograd.grad(out, parts[: 3 + biased], towards.to(dtype))]
        for one, other in zip([recorded, *found], [weights, *expected], strict=True):
            assert one.dtype == dtype
            assert (one.double() - other).norm() <= tolerance * other.norm()


def test_large_scores_do_not_overflow_fp16_when_recorded() -> None:
    """Harmless to the fused path, they must not become NaN in the explicit one: 12 800, and -40 000 of hidden keys."""
    q, v = torch.full((1, 1, 3, 64), 40.0).half(), torch.randn(1, 1, 3, 64).half()
    explicit, _ = scaled_dot_product_attention(q, q, v, return_weights=True)
    close(explicit, scaled_dot_product_attention(q, q, v), 1e-2)
    q, hidden = torch.full((1, 1, 3, 64), 50.0).half().requires_grad_(), torch.zeros(1, 1, 1, 3).bool()
    out, _ = scaled_dot_product_attention(q, -2 * q.detach(), v, hidden, return_weights=True)
    assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()
