"""Which code computes an attention, the forms in which a stack prepares its mask, and flex attention's rules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from minitx.nn import scaled_dot_product_attention
from minitx.nn.flex import _block_mask, _score_mod, flex_attention
from minitx.nn.kernels import FLEX_FROM_TOKENS, FLEX_MIN_D_HEAD, MaskAndBias, choose_kernel, fold
from minitx.nn.masks import same_document

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
every_direction = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


@pytest.fixture(autouse=True)
def _no_grad():
    """Step by step on a CPU, flex attention has no backward."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def both(q: Tensor, k: Tensor, v: Tensor, **options) -> tuple[Tensor, Tensor]:
    explicit, _ = scaled_dot_product_attention(q, k, v, return_weights=True, **options)
    return flex_attention(q, k, v, compiled=False, **options), explicit


def choose(
    device: str, queries: int, keys: int, d_head: int = FLEX_MIN_D_HEAD, trained: bool = False, **options: Any
) -> str:
    x = torch.empty(1, dtype=options.pop("dtype", torch.float32), requires_grad=trained)
    if device == "cuda":
        x = OnAGpu()
    dropout, softcap = options.pop("dropout", 0.0), options.pop("softcap", None)
    return choose_kernel(x, queries, keys, d_head, MaskAndBias(**options), dropout, softcap)


class OnAGpu:
    """The device of a tensor: all that is read of it there, so the tests need no GPU."""

    device = torch.device("cuda")


@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({"causal": True}, "fused"),
        ({"causal": True, "window": 9}, "fused"),
        ({"softcap": 2.0}, "explicit"),
        ({"window": 9, "softcap": 2.0}, "explicit"),
        ({"dropout": 0.1}, "fused"),
    ],
)
def test_on_a_cpu_no_kernel_is_generated(options: dict, kernel: str) -> None:
    assert choose("cpu", FLEX_FROM_TOKENS, FLEX_FROM_TOKENS, **options) == kernel


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
def test_bf16_trains_with_the_explicit_softmax_on_a_cpu(
    tokens: int, dtype: torch.dtype, trained: bool, kernel: str
) -> None:
    assert choose("cpu", tokens, tokens, trained=trained, dtype=dtype, causal=True) == kernel


@pytest.mark.parametrize(
    ("queries", "keys", "d_head", "options", "kernel"),
    [
        (1, 1, 1, {"window": 9}, "flex"),
        (1, 1, 1, {"softcap": 2.0}, "flex"),
        (1, 1, 1, {"softcap": 2.0, "window": 9, "causal": True}, "flex"),
        (1, 1, 1, {"causal": True}, "fused"),
        (1, 1, 1, {"window": 9, "mask": torch.ones(1).bool()}, "fused"),
        (1, 1, 1, {"softcap": 2.0, "mask": torch.ones(1).bool()}, "explicit"),
        (1, 1, 1, {"window": 9, "bias": torch.zeros(1)}, "fused"),
        (1, 1, 1, {"softcap": 2.0, "dropout": 0.1}, "explicit"),
        (0.5, 0.5, 1, {"window": 9}, "fused"),
        (1, 1, 0.5, {"softcap": 2.0}, "explicit"),
        (0.01, 1, 1, {"window": 9}, "fused"),
        (1, 2, 1, {"softcap": 2.0}, "explicit"),
    ],
)
def test_on_a_gpu_long_unpadded_sequences_skip_masked_block_mask(
    queries: float, keys: float, d_head: float, options: dict, kernel: str
) -> None:
    """Sizes as multiples of the least that flex takes."""
    sizes = int(queries * FLEX_FROM_TOKENS), int(keys * FLEX_FROM_TOKENS), int(d_head * FLEX_MIN_D_HEAD)
    assert choose("cuda", *sizes, **options) == kernel


@pytest.mark.parametrize("kernel", ["fused", "explicit"])
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padding"])
@pytest.mark.parametrize("window", [None, 3])
@every_direction
def test_what_is_folded_once_gives_the_same_attention(
    causal: bool, window: int | None, padded: bool, biased: bool, kernel: str
) -> None:
    """Bit for bit, on both paths and whichever path it was folded for; and a second fold finds nothing to do."""
    q, k, v = (torch.randn(2, 4, 7, 8) for _ in range(3))
    mask = (torch.arange(7) < torch.tensor([[7], [0]]))[:, None, None] if padded else None
    bias, documents = torch.randn(1, 4, 7, 7) if biased else None, torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2)
    masking = MaskAndBias(mask, bias, causal, window)
    by_rule = documents[:, None, :, None] == documents[:, None, None, :]
    whole = {"mask": by_rule if mask is None else mask & by_rule, "bias": bias, "causal": causal, "window": window}
    for rules, options in (((), masking._asdict()), ((same_document(documents),), whole)):
        folded = fold(masking, kernel, 7, 7, q.dtype, q.device, rules)
        again = fold(folded, kernel, 7, 7, q.dtype, q.device)
        assert all(one is other for one, other in zip(again, folded, strict=True))
        assert folded.window is None
        assert not (folded.causal and (window or padded or biased or rules or kernel == "explicit"))
        for weights in (False, True):
            results = [
                scaled_dot_product_attention(q, k, v, return_weights=weights, **given)
                for given in (folded._asdict(), options)
            ]
            one, other = results if weights else [(result,) for result in results]
            assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_one_query_needs_no_mask_for_what_it_may_attend_to_anyhow() -> None:
    device = torch.device("cpu")
    assert fold(MaskAndBias(causal=True), "explicit", 1, 9, torch.float32, device) == MaskAndBias()
    assert fold(MaskAndBias(causal=True, window=9), "fused", 1, 9, torch.float32, device) == MaskAndBias()
    (mask, *_) = fold(MaskAndBias(causal=True, window=8), "fused", 1, 9, torch.float32, device)
    assert mask is not None
    assert mask.tolist() == [[-math.inf, *[0.0] * 8]]


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
    blocks = _block_mask(16 * 128, causal, 65, torch.device("cpu"))
    assert int(blocks.to_dense().sum()) == 16 + 15 * (1 if causal else 2)
    whole = _block_mask(16 * 128, causal, None, torch.device("cpu"))
    assert whole is None if not causal else int(whole.to_dense().sum()) == 16 * 17 // 2


def test_blocks_and_score_mods_are_made_once() -> None:
    """Another function each time would be another kernel to compile each time."""
    assert _score_mod(2.0) is _score_mod(2.0)
    assert _score_mod(2.0) is not _score_mod(3.0)
    assert _block_mask(64, True, 3, torch.device("cpu")) is _block_mask(64, True, 3, torch.device("cpu"))


def test_blocks_made_while_predicting_serve_training() -> None:
    """A tensor made in inference mode could not be saved for a backward pass."""
    _block_mask.cache_clear()
    with torch.inference_mode():
        blocks = _block_mask(96, True, 3, torch.device("cpu"))
    parts = [part for part in vars(blocks).values() if isinstance(part, Tensor)]
    assert parts
    assert not any(part.is_inference() for part in parts)
