"""Scaled dot-product attention on both paths, and its multi-head form."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from minitx.inspection.kernels import kernel_name
from minitx.inspection.recording import record_attention
from minitx.nn import POSITIONS, MultiHeadAttention, masks, scaled_dot_product_attention
from minitx.nn.attention import SHORT, WRITTEN_OUT
from minitx.nn.norms import RMSNorm

HALF = (torch.bfloat16, torch.float16)
LONG = math.isqrt(SHORT) + 5
"""Past this length the CPU's half-precision path goes to the half-precision kernel."""


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def close(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, check_dtype=False)


def allowed_by_loop(queries: int, keys: int, causal: bool, keep: Tensor | None) -> Tensor:
    """[B or 1, 1, T, S], written out: the convention itself, not the code under test."""
    rows = [[True] * keys] if keep is None else keep.tolist()
    return torch.tensor(
        [
            [[[real and (not causal or s <= keys - queries + t) for s, real in enumerate(row)] for t in range(queries)]]
            for row in rows
        ]
    )


def attention_by_loop(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The formula of the paper in double precision, one query at a time; a row without keys gives zeros."""
    batch, heads, queries, width = q.shape
    group = heads // k.size(1)
    weights = torch.zeros(batch, heads, queries, k.size(2), dtype=torch.double)
    for b in range(batch):
        for h in range(heads):
            for t in range(queries):
                scores = k[b, h // group].double() @ q[b, h, t].double() / width**0.5 + bias[b, h, t].double()
                exponentials = scores.exp() * allowed[b, h, t]
                if allowed[b, h, t].any():
                    weights[b, h, t] = exponentials / exponentials.sum()
    values = v.double().repeat_interleave(group, dim=1)
    return weights @ values, weights


def right_padding(rows: int, keys: int) -> Tensor:
    """Row b has b padded keys at its end."""
    return torch.arange(keys)[None] < keys - torch.arange(rows)[:, None]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (1, 6)])
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padding"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_both_paths_are_the_formula_and_torch(
    causal: bool, padded: bool, biased: bool, queries: int, keys: int, kv_heads: int
) -> None:
    q = torch.randn(3, 4, queries, 8)
    k, v = torch.randn(3, kv_heads, keys, 8), torch.randn(3, kv_heads, keys, 8)
    bias = torch.randn(1, 4, queries, keys) if biased else None
    keep = right_padding(3, keys) if padded else None

    mask = masks.key_padding(keep)
    fused = scaled_dot_product_attention(q, k, v, mask, bias, causal=causal)
    explicit, weights = scaled_dot_product_attention(q, k, v, mask, bias, return_weights=True, causal=causal)

    allowed = allowed_by_loop(queries, keys, causal, keep).expand(3, 4, queries, keys)
    added = torch.zeros(3, 4, queries, keys) if bias is None else bias.expand(3, -1, -1, -1)
    formula, formula_weights = attention_by_loop(q, k, v, allowed, added)
    torchs = F.scaled_dot_product_attention(q, k, v, added.masked_fill(~allowed, -math.inf), enable_gqa=True)
    close(torchs, formula)  # the two references agree, on the order of grouped heads too
    close(fused, torchs)
    close(explicit, torchs)
    close(weights, formula_weights)
    close(weights.sum(-1), torch.ones(3, 4, queries))
    assert (weights[~allowed] == 0).all()


def test_causal_equals_torch_is_causal_and_a_mask_tensor() -> None:
    q, k, v = (torch.randn(2, 2, 6, 8) for _ in range(3))
    torchs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    triangle = torch.ones(6, 6).tril().bool()
    for return_weights in (False, True):
        by_flag = scaled_dot_product_attention(q, k, v, causal=True, return_weights=return_weights)
        by_mask = scaled_dot_product_attention(q, k, v, triangle, return_weights=return_weights)
        close(by_flag[0] if return_weights else by_flag, torchs)
        close(by_mask[0] if return_weights else by_mask, torchs)


@pytest.mark.parametrize("padded", [False, True], ids=["", "padding"])
def test_both_paths_have_the_same_gradients(padded: bool) -> None:
    mask = masks.key_padding(right_padding(3, 6)) if padded else None
    q = torch.randn(3, 4, 6, 8, requires_grad=True)
    k, v = (torch.randn(3, 2, 6, 8, requires_grad=True) for _ in range(2))
    bias = torch.randn(1, 4, 6, 6, requires_grad=True)
    towards = torch.randn(3, 4, 6, 8)
    fused = scaled_dot_product_attention(q, k, v, mask, bias, causal=True)
    explicit, _ = scaled_dot_product_attention(q, k, v, mask, bias, return_weights=True, causal=True)
    for one, other in zip(
        torch.autograd.grad(fused, (q, k, v, bias), towards),
        torch.autograd.grad(explicit, (q, k, v, bias), towards),
        strict=True,
    ):
        close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("length", [5, LONG])
@pytest.mark.parametrize("path", ["fused", "explicit"])
def test_rows_with_nothing_to_attend_give_zeros_and_finite_gradients(
    path: str, length: int, biased: bool, dropout: float, dtype: torch.dtype
) -> None:
    """Row 0 of the batch is whole, row 1 is all padding, row 2 is padded on the left under the causal rule.

    Anomaly detection watches the backward pass inside, too: a NaN that is masked away later still counts.
    """
    q, k, v = (torch.randn(3, 1, length, 4, dtype=dtype, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 1, length, length, dtype=dtype, requires_grad=True) if biased else None
    keep = torch.ones(3, length, dtype=torch.bool)
    keep[1], keep[2, :2] = False, False
    mask = masks.key_padding(keep)
    inputs = [q, k, v] if bias is None else [q, k, v, bias]
    with torch.autograd.set_detect_anomaly(True):
        if path == "fused":
            out = scaled_dot_product_attention(q, k, v, mask, bias, dropout, causal=True)
        else:
            out, weights = scaled_dot_product_attention(q, k, v, mask, bias, dropout, return_weights=True, causal=True)
        gradients = torch.autograd.grad(out.float().square().sum(), inputs)
    if path == "explicit":
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


@pytest.mark.parametrize("path", ["fused", "explicit"])
def test_more_queries_than_keys_under_the_causal_rule(path: str) -> None:
    """Right alignment leaves the first T - S queries before every key."""
    q, k, v = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    if path == "fused":
        out = scaled_dot_product_attention(q, k, v, causal=True)
    else:
        out, _ = scaled_dot_product_attention(q, k, v, causal=True, return_weights=True)
    assert (out[:, :, :2] == 0).all()
    close(out[:, :, 2:], F.scaled_dot_product_attention(q[:, :, 2:], k, v, is_causal=True))


@pytest.mark.parametrize("path", ["fused", "explicit"])
def test_dropout_drops_weights_and_returns_them_whole(path: str) -> None:
    """With the identity for values the output *is* the dropped weights: each is zero or scaled up."""
    length, dropout = 40, 0.25
    q, k = torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 8)
    v = torch.eye(length).expand(2, 2, -1, -1)
    _, whole = scaled_dot_product_attention(q, k, v, return_weights=True)
    if path == "fused":
        out = scaled_dot_product_attention(q, k, v, dropout=dropout)
    else:
        out, weights = scaled_dot_product_attention(q, k, v, dropout=dropout, return_weights=True)
        assert torch.equal(weights, whole)
        close(weights.sum(-1), torch.ones(2, 2, length))
    dropped = out == 0
    assert abs(dropped.float().mean() - dropout) < 0.05
    close(out[~dropped], whole[~dropped] / (1 - dropout))


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("length", [17, LONG])
def test_half_precision_is_close_to_fp32(length: int, causal: bool, biased: bool, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 2, length, 16).to(dtype) for _ in range(3))
    bias = torch.randn(1, 2, length, length).to(dtype) if biased else None
    exact = F.scaled_dot_product_attention(
        q.float(), k.float(), v.float(),
        (torch.zeros(1) if bias is None else bias.float()).masked_fill(
            ~allowed_by_loop(length, length, causal, None), -math.inf
        ),
    )  # fmt: skip
    for autocast in (False, True):
        with torch.autocast("cpu", dtype=dtype, enabled=autocast):
            fused = scaled_dot_product_attention(q, k, v, bias=bias, causal=causal)
            explicit, weights = scaled_dot_product_attention(q, k, v, bias=bias, return_weights=True, causal=causal)
        assert fused.dtype == explicit.dtype == weights.dtype == dtype
        close(fused, exact, 2e-2)
        close(explicit, exact, 2e-2)
        close(weights.float().sum(-1), torch.ones(2, 2, length), 2e-2)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padding"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("length", [17, math.isqrt(WRITTEN_OUT.start), LONG, math.isqrt(WRITTEN_OUT.stop) + 1])
def test_training_in_bf16_is_close_to_fp64(length: int, causal: bool, padded: bool, kv_heads: int) -> None:
    """Whichever code computes it: the output and all gradients."""
    parts = [torch.randn(2, heads, length, 16) for heads in (4, kv_heads, kv_heads)]
    towards = torch.randn(2, 4, length, 16)
    mask = masks.key_padding(right_padding(2, length)) if padded else None

    def results(dtype: torch.dtype) -> list[Tensor]:
        q, k, v = (part.bfloat16().to(dtype).requires_grad_() for part in parts)
        out = scaled_dot_product_attention(q, k, v, mask, causal=causal)
        return [out, *torch.autograd.grad(out, (q, k, v), towards.bfloat16().to(dtype))]

    for found, exact in zip(results(torch.bfloat16), results(torch.float64), strict=True):
        assert found.dtype == torch.bfloat16
        assert (found.double() - exact).norm() < 1e-2 * exact.norm()


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_short_half_precision_loses_only_the_last_rounding(dtype: torch.dtype, autocast: bool) -> None:
    """On the CPU short sequences are computed in fp32, so the result is the exact one rounded once."""
    q, k, v = (torch.randn(2, 4, 17, 16).to(dtype) for _ in range(3))
    bias, keep = torch.randn(1, 4, 17, 17).to(dtype), right_padding(2, 17)
    added = bias.float().masked_fill(~allowed_by_loop(17, 17, True, keep), -math.inf)
    exact = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), added)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        out = scaled_dot_product_attention(q, k, v, masks.key_padding(keep), bias, causal=True)
    torch.testing.assert_close(out.float(), exact, rtol=torch.finfo(dtype).eps / 2, atol=1e-5)


def test_large_scores_do_not_overflow_fp16_when_recorded() -> None:
    """Scores of size 100 000 / sqrt(64) are harmless to the fused path; recording must not make them NaN."""
    q = torch.full((1, 1, 3, 64), 40.0, dtype=torch.float16)
    v = torch.randn(1, 1, 3, 64, dtype=torch.float16)
    fused = scaled_dot_product_attention(q, q, v)
    explicit, _ = scaled_dot_product_attention(q, q, v, return_weights=True)
    assert fused.isfinite().all()
    close(explicit, fused, 1e-2)


@pytest.mark.parametrize("path", ["fused", "explicit"])
def test_double_precision_stays_double(path: str) -> None:
    """trainer.precision 64-true is offered, and gradcheck needs it."""
    q, k, v = (torch.randn(2, 2, 6, 8, dtype=torch.double) for _ in range(3))
    exact, exact_weights = attention_by_loop(q, k, v, torch.ones(2, 2, 6, 6).bool(), torch.zeros(2, 2, 6, 6))
    if path == "fused":
        out = scaled_dot_product_attention(q, k, v)
    else:
        out, weights = scaled_dot_product_attention(q, k, v, return_weights=True)
        close(weights, exact_weights, 1e-12)
    assert out.dtype == torch.double
    close(out, exact, 1e-12)


# --- multi-head attention -------------------------------------------------------------------------------------------


def recorded(attention: MultiHeadAttention, *args, **kwargs) -> tuple[Tensor, Tensor]:
    """Output and weights of one call."""
    with record_attention(attention) as maps:
        out = attention(*args, **kwargs)
    return out, maps[""]


@pytest.mark.parametrize("padded", [False, True], ids=["", "padding"])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_equals_torch_multihead_attention(kind: str, padded: bool, roughen, twin) -> None:
    ours = roughen(MultiHeadAttention(12, 3))
    x, memory = torch.randn(3, 5, 12), torch.randn(3, 7, 12) if kind == "cross" else None
    source = x if memory is None else memory
    keep = right_padding(3, source.size(1)) if padded else None
    triangle = torch.ones(5, 5).tril().bool()
    theirs, their_weights = twin(ours)(
        x, source, source,
        attn_mask=~triangle if kind == "causal" else None,
        key_padding_mask=None if keep is None else ~keep,
        average_attn_weights=False,
    )  # fmt: skip
    mask, causal = masks.key_padding(keep), kind == "causal"
    close(ours(x, memory, mask, causal), theirs)
    out, weights = recorded(ours, x, memory, mask, causal)
    close(out, theirs)
    close(weights, their_weights)


def test_shapes_of_the_notes() -> None:
    """Batch 2, length 5, d_model 768, 12 heads."""
    out, weights = recorded(MultiHeadAttention(768, 12), torch.randn(2, 5, 768))
    assert out.shape == (2, 5, 768)
    assert weights.shape == (2, 12, 5, 5)


def multi_head_by_loop(part: MultiHeadAttention, x: Tensor, allowed: Tensor) -> Tensor:
    """Each head written out from slices of the projections; heads h * H/G ... share key-value head h."""

    def head(projection: nn.Linear, norm: nn.Module, index: int) -> Tensor:
        rows = slice(index * part.d_head, (index + 1) * part.d_head)
        out = x @ projection.weight[rows].T + (projection.bias[rows] if projection.bias is not None else 0.0)
        if isinstance(norm, RMSNorm):
            out = norm.weight * out / (out.square().mean(-1, keepdim=True) + torch.finfo(out.dtype).eps).sqrt()
        return out  # [B, T, K]

    heads = []
    for index in range(part.n_heads):
        shared = index * part.n_kv_heads // part.n_heads
        q, k = head(part.q_proj, part.q_norm, index), head(part.k_proj, part.k_norm, shared)
        scores = (q @ k.transpose(1, 2) / math.sqrt(part.d_head)).masked_fill(~allowed, -math.inf)
        heads.append(scores.softmax(-1) @ head(part.v_proj, nn.Identity(), shared))
    return part.o_proj(torch.cat(heads, dim=-1))


@pytest.mark.parametrize("bias", [True, False], ids=["", "no bias"])
@pytest.mark.parametrize("qk_norm", [False, True], ids=["", "qk_norm"])
@pytest.mark.parametrize("d_head", [None, 5])
@pytest.mark.parametrize("n_kv_heads", [None, 4, 2, 1])
def test_heads_written_out(n_kv_heads: int | None, d_head: int | None, qk_norm: bool, bias: bool, roughen) -> None:
    part = roughen(MultiHeadAttention(12, 4, n_kv_heads, d_head, qk_norm=qk_norm, bias=bias))
    x = torch.randn(2, 6, 12)
    expected = multi_head_by_loop(part, x, torch.ones(6, 6).tril().bool())
    close(part(x, causal=True), expected)
    out, weights = recorded(part, x, causal=True)
    close(out, expected)
    assert weights.shape == (2, 4, 6, 6)
    assert part.k_proj.out_features == (n_kv_heads or 4) * (d_head or 3)
    assert any(name.endswith("bias") for name, _ in part.named_parameters()) == bias


def test_qk_norm_makes_weights_blind_to_the_size_of_the_input(roughen) -> None:
    x = torch.randn(1, 5, 8)
    for qk_norm in (True, False):
        part = roughen(MultiHeadAttention(8, 2, qk_norm=qk_norm, bias=False))
        _, weights = recorded(part, x)
        _, louder = recorded(part, 10 * x)
        assert torch.allclose(weights, louder, atol=1e-4) == qk_norm


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("size", [1, 3, 5, 99])
def test_window_sees_exactly_its_keys(size: int, causal: bool, roughen) -> None:
    part = roughen(MultiHeadAttention(8, 2, window=size))
    keep = right_padding(2, 7)
    x = torch.randn(2, 7, 8)
    out, weights = recorded(part, x, mask=masks.key_padding(keep), causal=causal)
    for b in range(2):
        for t in range(7):
            near = range(t - size + 1, t + 1) if causal else range(t - size // 2, t + size // 2 + 1)
            seen = {s for s in near if 0 <= s < 7 and keep[b, s]}
            for h in range(2):
                assert {s for s in range(7) if weights[b, h, t, s] > 0} == seen
    close(part(x, mask=masks.key_padding(keep), causal=causal), out)


def test_even_window_fits_only_causal_attention() -> None:
    part = MultiHeadAttention(8, 2, window=4)
    part(torch.randn(1, 6, 8), causal=True)
    with pytest.raises(ValueError, match=r"model\.window.* 4"):
        part(torch.randn(1, 6, 8), causal=False)


def test_without_positions_and_mask_order_does_not_matter(roughen) -> None:
    part, x, order = roughen(MultiHeadAttention(8, 2)), torch.randn(2, 6, 8), torch.randperm(6)
    close(part(x[:, order]), part(x)[:, order])
    memory = torch.randn(2, 6, 8)
    close(part(x, memory[:, order]), part(x, memory))
    assert not torch.allclose(part(x[:, order], causal=True), part(x, causal=True)[:, order], atol=1e-3)


def test_self_attention_turns_both_sides_and_biases_the_scaled_scores(roughen, all_hooks) -> None:
    scheme = all_hooks(8, 2, 4, True)
    part = roughen(MultiHeadAttention(8, 2, n_kv_heads=1, position=scheme))
    x, pos = torch.randn(2, 5, 8), torch.tensor([[0, 0, 1, 2, 3], [4, 9, 2, 7, 1]])
    q = part.q_proj(x).unflatten(2, (2, 4)).transpose(1, 2)
    k = part.k_proj(x).unflatten(2, (1, 4)).transpose(1, 2)
    scores = scheme.rotate(q, pos) @ scheme.rotate(k, pos).transpose(2, 3) / 2.0  # sqrt(d_head)
    expected = (
        (scores + scheme.bias(q, k, pos, pos)).masked_fill(~torch.ones(5, 5).tril().bool(), -math.inf).softmax(-1)
    )
    _, weights = recorded(part, x, causal=True, pos=pos)
    close(weights, expected)
    close(part(x, causal=True), part(x, causal=True, pos=torch.arange(5)[None]))  # consecutive unless told


@pytest.mark.parametrize("name", [*POSITIONS, "all_hooks"])
def test_cross_attention_hears_no_positions(name: str, roughen, all_hooks) -> None:
    """Positions of x and places in a memory are different things: the hooks stay silent."""
    scheme = {**POSITIONS, "all_hooks": all_hooks}[name](8, 2, 4, False)
    part = roughen(MultiHeadAttention(8, 2, position=scheme))
    x, memory = torch.randn(1, 4, 8), torch.randn(1, 6, 8)
    order, pos, other = torch.randperm(6), torch.tensor([[0, 1, 2, 3]]), torch.tensor([[7, 3, 9, 5]])
    close(part(x, memory[:, order], pos=pos), part(x, memory, pos=other))


@pytest.mark.parametrize("qk_norm", [False, True], ids=["", "qk_norm"])
@pytest.mark.parametrize("name", POSITIONS)
def test_autocast_is_close_to_fp32_with_every_scheme(name: str, qk_norm: bool, roughen) -> None:
    part = roughen(MultiHeadAttention(16, 4, 2, position=POSITIONS[name](16, 4, 4, True), qk_norm=qk_norm))
    x, keep = torch.randn(2, 9, 16), right_padding(2, 9)
    exact = part(x, mask=masks.key_padding(keep), causal=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = part(x, mask=masks.key_padding(keep), causal=True)
        out_recorded, weights = recorded(part, x, mask=masks.key_padding(keep), causal=True)
    assert out.dtype == torch.bfloat16
    close(out, exact, 5e-2)
    close(out_recorded, exact, 5e-2)
    close(weights.float().sum(-1), torch.ones(2, 4, 9), 2e-2)


def test_attention_dropout_only_in_training(roughen) -> None:
    part, x = roughen(MultiHeadAttention(8, 2, dropout=0.5)), torch.randn(2, 6, 8)
    assert torch.equal(part.eval()(x), part(x))
    assert not torch.allclose(part.train()(x), part(x))


@pytest.mark.parametrize(
    ("arguments", "key", "numbers"),
    [
        ({"d_model": 10, "n_heads": 3}, "model.n_heads", ("10", "3")),
        ({"d_model": 8, "n_heads": 0}, "model.n_heads", ("0",)),
        ({"d_model": 0, "n_heads": 2}, "model.d_model", ("0",)),
        ({"d_model": -8, "n_heads": 2}, "model.d_model", ("-8",)),
        ({"d_model": 8, "n_heads": 4, "n_kv_heads": 3}, "model.n_kv_heads", ("4", "3")),
        ({"d_model": 8, "n_heads": 4, "n_kv_heads": 8}, "model.n_kv_heads", ("4", "8")),
        ({"d_model": 8, "n_heads": 4, "n_kv_heads": 0}, "model.n_kv_heads", ("4", "0")),
        ({"d_model": 8, "n_heads": 4, "dropout": 1.0}, "model.attention_dropout", ("1.0",)),
        ({"d_model": 8, "n_heads": 4, "dropout": -0.1}, "model.attention_dropout", ("-0.1",)),
        ({"d_model": 8, "n_heads": 4, "window": 0}, "model.window", ("0",)),
        ({"d_model": 8, "n_heads": 4, "d_head": 0}, "model.d_head", ("0",)),
        ({"d_model": 8, "n_heads": 4, "d_head": -2}, "model.d_head", ("-2",)),
    ],
)  # fmt: skip
def test_refusals_name_the_key_and_the_numbers(arguments: dict, key: str, numbers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=key.replace(".", r"\.")) as refusal:
        MultiHeadAttention(**arguments)
    for number in numbers:
        assert number in str(refusal.value)


# --- cuDNN's kernel on a GPU: with a mask its backward gives NaN where tokens % 128 == 64 (pytorch issue 196678) -----


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, True),
        ({"causal": True}, True),
        ({"mask": torch.ones(1, 1, 1, 64).bool()}, False),
        ({"bias": torch.zeros(1, 2, 64, 64)}, False),
        ({"causal": True, "window": 5}, False),
    ],
    ids=["plain", "causal", "mask", "bias", "window"],
)
def test_cudnn_is_never_given_a_mask(
    options: dict, allowed: bool, compiling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated: tensors of a CUDA device without numbers."""
    said = []

    def attend(q: Tensor, *given: object, **more: object) -> Tensor:
        said.append(torch.backends.cuda.cudnn_sdp_enabled())
        return q

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *given, **more: attend(*given) is None)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    monkeypatch.setattr(masks, "build", lambda *rules, queries, keys, device: torch.ones(queries, keys, device=device))
    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 2, 64, 16, device="cuda", dtype=torch.bfloat16)
        given = {
            name: torch.empty(value.shape, dtype=value.dtype, device="cuda") if isinstance(value, Tensor) else value
            for name, value in options.items()
        }
        scaled_dot_product_attention(q, q, q, **given)
        kernel_name(q, q, q, **given)
    assert said == [allowed, allowed]
    assert torch.backends.cuda.cudnn_sdp_enabled(), "as it was before"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("tokens", [64, 192, 320])
def test_gradients_are_finite_on_a_gpu_whatever_the_length(tokens: int, dtype: torch.dtype) -> None:
    """Scores so low that the exponential of their negative overflows in fp32."""
    q, k, v = (torch.randn(2, 2, tokens, 64, device="cuda", dtype=dtype) for _ in range(3))
    q[..., 0], k[..., 0] = 1.0, -120 * math.sqrt(64)
    q, k, v = (part.requires_grad_() for part in (q, k, v))
    keep = torch.ones(2, 1, 1, tokens, dtype=torch.bool, device="cuda")
    out = scaled_dot_product_attention(q, k, v, mask=keep, causal=True)
    for gradient in torch.autograd.grad(out, (q, k, v), torch.randn_like(out)):
        assert gradient.isfinite().all()
