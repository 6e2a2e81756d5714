"""Windows and soft caps of scaled dot-product attention: every path computes the same numbers."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from minitx.config.schema import ModelConfig
from minitx.interpret.recording import record_attention
from minitx.models.builder import build_model
from minitx.nn import MultiHeadAttention, scaled_dot_product_attention
from minitx.nn.kernels import FLEX_FROM, FLEX_HEAD, choose_kernel

every_mask = pytest.mark.parametrize("hidden", ["none", "padding", "heads"])
every_window = pytest.mark.parametrize("window", [None, 1, 3, 99])
every_direction = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def close(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, check_dtype=False)


def make_mask(hidden: str, keys: int) -> Tensor | None:
    """Padding of each row's own, or what each head may see; the last row of the batch sees nothing at all."""
    if hidden == "none":
        return None
    if hidden == "padding":
        return (torch.arange(keys) < torch.tensor([[keys], [2], [0]]))[:, None, None, :]
    mask = torch.rand(3, 4, 1, keys) < 0.6
    mask[2, 1:] = False
    return mask


def allowed(mask: Tensor | None, queries: int, keys: int, causal: bool, window: int | None) -> Tensor:
    """[3, 4, T, S], written out."""
    seen = torch.ones(3, 4, queries, keys).bool() if mask is None else mask.expand(3, 4, queries, keys).clone()
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
@every_window
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
        seen = allowed(mask, queries, 6, causal, window)
        expected, expected_weights = by_formula(q, k, v, seen, bias, softcap)
        plain = scaled_dot_product_attention(q, k, v, **options)
        explicit, weights = scaled_dot_product_attention(q, k, v, return_weights=True, **options)
        close(plain, expected)
        close(explicit, expected)
        close(weights, expected_weights)
        assert (weights[~seen] == 0).all()
        assert (plain[(~seen).all(-1)] == 0).all()


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 3])
@every_direction
@every_mask
def test_half_precision_rounds_and_no_more(
    hidden: str, causal: bool, window: int | None, softcap: float | None, biased: bool, autocast: bool
) -> None:
    q, k, v = (torch.randn(3, heads, 9, 8).bfloat16() for heads in (4, 2, 2))
    bias = torch.randn(1, 4, 9, 9).bfloat16() if biased else None
    mask = make_mask(hidden, 9)
    options = {"mask": mask, "bias": bias, "causal": causal, "window": window, "softcap": softcap}
    expected, _ = by_formula(q, k, v, allowed(mask, 9, 9, causal, window), bias, softcap)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        plain = scaled_dot_product_attention(q, k, v, **options)
        explicit, weights = scaled_dot_product_attention(q, k, v, return_weights=True, **options)
    assert plain.dtype == explicit.dtype == weights.dtype == torch.bfloat16
    close(plain, expected, 1e-2 if softcap is None else 4e-2)
    close(explicit, expected, 4e-2)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("explicit", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_that_see_nothing_give_zeros_and_finite_gradients(
    dtype: torch.dtype, explicit: bool, window: int | None, softcap: float | None
) -> None:
    """Row 1 is all padding; row 2 has only its first key, which a narrow window hides from the later queries."""
    q, k, v = (torch.randn(3, 1, 6, 4, dtype=dtype, requires_grad=True) for _ in range(3))
    keep = torch.ones(3, 6, dtype=torch.bool)
    keep[1], keep[2, 1:] = False, False
    options = {"mask": keep[:, None, None, :], "causal": True, "window": window, "softcap": softcap}
    with torch.autograd.set_detect_anomaly(True):
        if explicit:
            out, _ = scaled_dot_product_attention(q, k, v, return_weights=True, **options)
        else:
            out = scaled_dot_product_attention(q, k, v, **options)
        gradients = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    assert (out[1] == 0).all()
    assert bool((out[2, :, 2:] == 0).all()) == (window is not None)
    assert (out[2, :, 0] != 0).any()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all((gradient[1] == 0).all() for gradient in gradients)


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


def test_a_high_cap_is_none() -> None:
    q, k, v = (torch.randn(2, 2, 7, 8) for _ in range(3))
    plain = scaled_dot_product_attention(q, k, v, causal=True)
    far = [
        (scaled_dot_product_attention(q, k, v, causal=True, softcap=cap) - plain).abs().max()
        for cap in (1.0, 10.0, 1e3)
    ]
    assert all(one > other for one, other in pairwise(far))
    assert far[-1] < 1e-5


def test_the_cap_bends_scores_before_bias_and_mask() -> None:
    """A bias, such as that of a far key, is not capped."""
    q = k = v = torch.eye(3)[None, None]
    bias = torch.tensor([[0.0, -50.0, 50.0]]).expand(3, 3)[None, None]
    _, weights = scaled_dot_product_attention(q, k, v, bias=bias, return_weights=True, softcap=1.0)
    assert (weights[..., 2] > 0.999).all()


def test_gradients_of_both_paths_are_the_same() -> None:
    q = torch.randn(3, 4, 6, 8, requires_grad=True)
    k, v = (torch.randn(3, 2, 6, 8, requires_grad=True) for _ in range(2))
    bias, towards = torch.randn(1, 4, 6, 6, requires_grad=True), torch.randn(3, 4, 6, 8)
    options = {"mask": make_mask("padding", 6), "bias": bias, "causal": True, "window": 3}
    one = torch.autograd.grad(scaled_dot_product_attention(q, k, v, **options), (q, k, v, bias), towards)
    explicit, _ = scaled_dot_product_attention(q, k, v, return_weights=True, **options)
    for mine, other in zip(torch.autograd.grad(explicit, (q, k, v, bias), towards), one, strict=True):
        close(mine, other)


def test_dropout_reaches_capped_attention() -> None:
    q, k = torch.randn(2, 2, 30, 8), torch.randn(2, 2, 30, 8)
    v = torch.eye(30).expand(2, 2, -1, -1)
    _, whole = scaled_dot_product_attention(q, k, v, return_weights=True, softcap=2.0)
    out = scaled_dot_product_attention(q, k, v, dropout=0.25, softcap=2.0)
    dropped = out == 0
    assert abs(dropped.float().mean() - 0.25) < 0.05
    close(out[~dropped], whole[~dropped] / 0.75)


# --- which code computes it -----------------------------------------------------------------------------------------


def long(device: str, tokens: int = FLEX_FROM, width: int = FLEX_HEAD) -> tuple[Tensor, Tensor]:
    return (torch.empty(1, 2, tokens, width, device=device),) * 2


def test_on_a_cpu_no_kernel_is_generated() -> None:
    q, k = long("cpu")
    assert choose_kernel(q, k, causal=True) == "fused"
    assert choose_kernel(q, k, causal=True, window=9) == "fused"
    assert choose_kernel(q, k, softcap=2.0) == "explicit"
    assert choose_kernel(q, k, window=9, softcap=2.0) == "explicit"
    assert choose_kernel(q, k, dropout=0.1) == "fused"


@pytest.mark.parametrize(
    ("tokens", "dtype", "trained", "kernel"),
    [
        (17, torch.bfloat16, True, "fused"),
        (64, torch.bfloat16, True, "explicit"),
        (512, torch.bfloat16, True, "explicit"),
        (1024, torch.bfloat16, True, "fused"),
        (256, torch.bfloat16, False, "fused"),
        (256, torch.float32, True, "fused"),
        (256, torch.float16, True, "fused"),
    ],
)
def test_on_a_cpu_short_sequences_in_bf16_are_trained_written_out(
    tokens: int, dtype: torch.dtype, trained: bool, kernel: str
) -> None:
    q = torch.empty(1, 2, tokens, 16, dtype=dtype, requires_grad=trained)
    assert choose_kernel(q, q, causal=True) == kernel


class OnAGpu:
    """Sizes and a device, all that the choice may look at: the tests need no GPU."""

    def __init__(self, tokens: int = FLEX_FROM, width: int = FLEX_HEAD) -> None:
        self.shape, self.device = (1, 2, tokens, width), torch.device("cuda")

    def size(self, dim: int) -> int:
        return self.shape[dim]


@pytest.mark.parametrize(
    ("q", "k", "options", "kernel"),
    [
        (OnAGpu(), OnAGpu(), {"window": 9}, "flex"),
        (OnAGpu(), OnAGpu(), {"softcap": 2.0}, "flex"),
        (OnAGpu(), OnAGpu(), {"softcap": 2.0, "window": 9, "causal": True}, "flex"),
        (OnAGpu(), OnAGpu(), {"causal": True}, "fused"),
        (OnAGpu(), OnAGpu(), {"window": 9, "mask": torch.ones(1).bool()}, "fused"),
        (OnAGpu(), OnAGpu(), {"softcap": 2.0, "mask": torch.ones(1).bool()}, "explicit"),
        (OnAGpu(), OnAGpu(), {"window": 9, "bias": torch.zeros(1)}, "fused"),
        (OnAGpu(), OnAGpu(), {"softcap": 2.0, "dropout": 0.1}, "explicit"),
        (OnAGpu(FLEX_FROM - 1), OnAGpu(FLEX_FROM - 1), {"window": 9}, "fused"),
        (OnAGpu(width=FLEX_HEAD - 1), OnAGpu(width=FLEX_HEAD - 1), {"softcap": 2.0}, "explicit"),
        (OnAGpu(1), OnAGpu(), {"window": 9}, "fused"),
        (OnAGpu(FLEX_FROM), OnAGpu(2 * FLEX_FROM), {"softcap": 2.0}, "explicit"),
    ],
)
def test_on_a_gpu_long_unpadded_sequences_skip_what_a_window_hides(q, k, options: dict, kernel: str) -> None:
    assert choose_kernel(q, k, **options) == kernel


# --- in a model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("softcap", [0.0, -1.0])
def test_a_cap_must_be_positive(softcap: float) -> None:
    with pytest.raises(ValueError, match=rf"model\.softcap must be positive, got {softcap}"):
        MultiHeadAttention(8, 2, softcap=softcap)
    with pytest.raises(ValueError, match=r"model\.softcap"):
        build_model(ModelConfig(d_model=8, n_heads=2, vocab_size=5, softcap=softcap))


def test_the_cap_reaches_every_attention(tiny) -> None:
    model = tiny("encoder_decoder", "rope", softcap=0.3)
    attentions = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    assert len(attentions) == 6
    for part in attentions:
        part.q_proj.weight.data *= 100
    ids = torch.randint(0, 11, (2, 6))
    with record_attention(model) as maps:
        model(ids, ids)
    for name, weights in maps.items():
        seen = weights[weights > 0]
        assert seen.min() >= math.exp(-0.6) / 6 * 0.999, name
