"""The relative schemes against independent implementations, and against their formulas written with loops."""

import math

import pytest
import torch
from torch import Tensor

from minitx.config.schema import ModelConfig
from minitx.models.builder import build_model
from minitx.nn.bias_positions import AlibiPositions, FirePositions, T5Positions, TransformerXLPositions
from minitx.nn.position_ids import ConsecutiveIds, CoupledIds, OffsetIds, RandomizedIds
from minitx.nn.positions import PolarPositions, RotaryPositions

D, H, K = 32, 4, 8
POS = torch.arange(9)[None]


def rotate(scheme: RotaryPositions, x: Tensor, pos: Tensor) -> Tensor:
    return scheme.rotate(x, scheme.prepare(pos, pos))


def heads(length: int = 9, groups: int = H) -> Tensor:
    return torch.randn(2, groups, length, K)


# ---- rope ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"fraction": 0.5}, {"scaling": "linear", "factor": 4.0}], ids=str)
def test_rope_scores_depend_on_the_difference_alone(options: dict) -> None:
    rope = RotaryPositions(D, H, K, True, **options)
    q, k = heads(), heads()
    here, there = (rotate(rope, q, pos) @ rotate(rope, k, pos).mT for pos in (POS, POS + 1000))
    torch.testing.assert_close(here, there, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(here, q @ k.mT, atol=1e-2)


def test_rope_keeps_lengths_and_the_unrotated_part() -> None:
    q = heads()
    turned = rotate(RotaryPositions(D, H, K, True, fraction=0.5), q, POS)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    assert torch.equal(turned[..., 4:], q[..., 4:])
    assert not torch.allclose(turned[:, :, 1:, :4], q[:, :, 1:, :4])


def test_rope_ntk_scaling_stretches_the_slow_waves_only() -> None:
    plain, stretched = RotaryPositions(D, H, K, True), RotaryPositions(D, H, K, True, scaling="ntk", factor=8.0)
    ratio = plain.frequencies / stretched.frequencies
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(8.0, rel=1e-4)
    assert (ratio.diff() > 0).all()


@pytest.mark.parametrize(
    "options",
    [
        {"fraction": 0.4},
        {"fraction": 0.0},
        {"fraction": 1.5},
        {"factor": 0.5},
        {"base": 1.0},
        {"scaling": "ntk", "fraction": 0.25},
        {"scaling": "llama3", "low_freq_factor": 5.0},
    ],
    ids=str,
)
def test_rope_refusals(options: dict) -> None:
    with pytest.raises(ValueError, match=r"model\.position\.(fraction|factor|base|scaling|low_freq_factor)"):
        RotaryPositions(D, H, K, True, **options)


# ---- alibi -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4, 6, 8, 12, 16])
def test_alibi_equals_bloom(count: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 9), count, torch.float32).view(1, count, 1, 9)
    ours = AlibiPositions(D, count, K, True).prepare(POS, POS)
    # Theirs adds slope x key position, which differs from ours by a constant in each row: softmax does not see it.
    shift = ours - theirs
    torch.testing.assert_close(shift.tril(), shift[..., :1].expand_as(shift).tril(), atol=1e-5, rtol=1e-5)


def test_alibi_is_symmetric_and_zero_on_the_diagonal() -> None:
    bias = AlibiPositions(D, H, K, False).prepare(POS, POS)[0]
    assert torch.equal(bias, bias.mT)
    assert (bias.diagonal(dim1=1, dim2=2) == 0).all()
    assert (bias[:, 0].diff() < 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_alibi_slopes_are_not_rounded_with_the_model(dtype: torch.dtype) -> None:
    """Those of twelve heads, such as 2^-0.5, have more digits than bf16."""
    scheme = AlibiPositions(24, 12, 2, True)
    exact = scheme.slopes.clone()
    assert scheme.to(dtype).slopes.dtype == torch.float32
    assert torch.equal(scheme.slopes, exact)


# ---- t5 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20)])
def test_t5_buckets_equal_t5(causal: bool, buckets: int, max_distance: int) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-300, 301)
    theirs = t5.T5Attention._relative_position_bucket(
        -distance, bidirectional=not causal, num_buckets=buckets, max_distance=max_distance
    )
    ours = T5Positions(D, H, K, causal, buckets, max_distance).bucket(distance)
    assert torch.equal(ours, theirs)
    assert torch.equal(T5Positions(D, H, K, True, buckets, max_distance, True).bucket(distance), theirs) != causal


def test_t5_bias_is_the_buckets_number_for_each_head() -> None:
    t5 = T5Positions(D, H, K, False)
    bias = t5.prepare(POS, POS)
    assert bias.shape == (1, H, 9, 9)
    for query in range(9):
        for key in range(9):
            expected = t5.table.weight[t5.bucket(torch.tensor(query - key))]
            assert torch.equal(bias[0, :, query, key], expected)


@pytest.mark.parametrize("options", [{"buckets": 3}, {"buckets": 2}, {"buckets": 64, "max_distance": 10}], ids=str)
def test_t5_refusals(options: dict) -> None:
    with pytest.raises(ValueError, match=r"model\.position\.buckets"):
        T5Positions(D, H, K, True, **options)


# ---- transformer-xl --------------------------------------------------------------------------------------------------


def ids_of(kind: str) -> Tensor:
    """Position ids [2, 9] as the numberings give them."""
    numbering = {
        "consecutive": lambda: ConsecutiveIds(causal=True),
        "offset": lambda: OffsetIds(causal=True, largest=100).train(),
        "randomized": lambda: RandomizedIds(causal=False, range=64).train(),
        "coupled": lambda: CoupledIds(causal=True, after=(3,)),
    }[kind.split()[0]]()
    ids = torch.tensor([[1, 3, 2, 2, 3, 1, 1, 2, 3], [2, 2, 3, 1, 1, 1, 3, 3, 2]])
    keep = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9]).bool() if "padded" in kind else None
    return numbering(ids, keep)


def by_every_distance(scheme: TransformerXLPositions, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """The bias with the waves of each pair's own distance, in float64."""
    steps = (q_pos[:, :, None] - k_pos[:, None, :]).double()
    angles = steps[..., None] * scheme.frequencies.double()
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    r = (waves @ scheme.r_proj.weight.double().mT).unflatten(-1, (H, K))  # [B, T, S, H, K]
    asked = (q + scheme.distance[:, None]).double()
    scores = torch.einsum("bhtk,btshk->bhts", asked, r.expand(len(q), -1, -1, -1, -1))
    k = k.repeat_interleave(H // k.size(1), dim=1).double()
    return (scores + scheme.content[:, None].double() @ k.mT) / math.sqrt(K)


@pytest.mark.parametrize("kind", ["consecutive", "offset", "randomized", "coupled", "consecutive padded"])
def test_transformer_xl_and_its_gradients_are_those_of_every_distance(kind: str) -> None:
    scheme = TransformerXLPositions(D, H, K, True)
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    pos = ids_of(kind)
    q, k = heads(4).requires_grad_(), heads(groups=2).requires_grad_()
    given = [q, k, *scheme.parameters()]
    towards = torch.randn(2, H, 4, 9)
    bias, expected = (
        scheme.bias(q, k, scheme.prepare(pos[:, 5:], pos)),
        by_every_distance(scheme, q, k, pos[:, 5:], pos),
    )
    torch.testing.assert_close(bias, expected.float(), atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad(bias, given, towards)
    torch.testing.assert_close(found, torch.autograd.grad(expected, given, towards.double()), atol=2e-5, rtol=1e-4)


def test_transformer_xl_reads_no_value() -> None:
    """Reading one would stall a GPU, and a compiler could not trace it."""
    scheme, q = TransformerXLPositions(D, H, K, True).to("meta"), heads().to("meta")
    assert scheme.bias(q, q, scheme.prepare(POS.to("meta"), POS.to("meta"))).shape == (2, H, 9, 9)


def test_transformer_xl_has_its_weights_in_every_layer_and_none_in_the_stack() -> None:
    config = ModelConfig(architecture="decoder_only", vocab_size=9, n_layers=3, position={"name": "transformer_xl"})
    model = build_model(config)
    schemes = [layer.self_attn.position for layer in model.decoder.layers]
    assert len({id(scheme) for scheme in schemes}) == 3
    assert not list(model.decoder.position.parameters())
    model(torch.randint(0, 9, (2, 5))).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


# ---- what a scheme cannot tell, whatever its weights -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "change"),
    [("none", lambda ids: ids[:, torch.randperm(ids.size(1))]), ("alibi", lambda ids: ids.flip(1))],
    ids=["none: any order is the same", "alibi: a mirror image is the same"],
)
def test_an_encoder_decoder_that_cannot_reverse(tiny, scheme: str, change) -> None:
    """Why docs/positions.md leaves these two out of the table of reversal."""
    model = tiny("encoder_decoder", scheme)
    src, tgt = torch.randint(6, 11, (2, 7)), torch.randint(6, 11, (2, 4))
    torch.testing.assert_close(model(change(src), tgt), model(src, tgt), atol=1e-5, rtol=1e-5)
    others = tiny("encoder_decoder", "rope")
    assert not torch.allclose(others(change(src), tgt), others(src, tgt), atol=1e-2)


# ---- pope and fire ---------------------------------------------------------------------------------------------------


def test_pope_is_the_sum_of_the_paper() -> None:
    """The scaled score: softplus(q) softplus(k) cos(distance x base^(-c / K)) over the dimensions c, by sqrt(K)."""
    pope, q, k = PolarPositions(D, H, K, True, base=100.0), heads(), heads(groups=2)
    prepared = pope.prepare(POS, POS)
    rotated_q, rotated_k = pope.rotate(q, prepared), pope.rotate(k, prepared).repeat_interleave(H // 2, dim=1)
    k, softplus = k.repeat_interleave(H // 2, dim=1), torch.nn.functional.softplus
    expected = torch.zeros(2, H, 9, 9)
    for i, j, c in ((i, j, c) for i in range(9) for j in range(9) for c in range(K)):
        cosine = math.cos((i - j) * 100.0 ** (-c / K))
        expected[:, :, i, j] += softplus(q[:, :, i, c]) * softplus(k[:, :, j, c]) * cosine / math.sqrt(K)
    torch.testing.assert_close(rotated_q @ rotated_k.mT / math.sqrt(rotated_q.size(-1)), expected)


@pytest.mark.parametrize("threshold", [4.0, 512.0])
def test_fire_is_the_function_of_the_paper(threshold: float) -> None:
    fire = FirePositions(D, H, K, True, hidden=5, threshold=threshold)
    bias = fire.prepare(POS, POS)[0]
    for i, j in torch.ones(9, 9).tril().nonzero().tolist():
        share = math.log(0.1 * (i - j) + 1) / math.log(0.1 * max(i, threshold) + 1)
        expected = (share * fire.slopes + fire.offsets).clamp(min=0) @ fire.readout + fire.shift
        torch.testing.assert_close(bias[:, i, j], expected, atol=1e-4, rtol=1e-4)


def test_fire_is_bounded_at_any_length_and_trains_its_threshold() -> None:
    fire, far = FirePositions(D, H, K, True), torch.tensor([[0, 5, 50, 100_000]])
    bias = fire.prepare(far, far)
    torch.testing.assert_close(bias[0, :, 3, 0], bias[0, :, 2, 0], atol=1e-4, rtol=1e-4)  # the first of all tokens
    bias.square().sum().backward()
    trained = {name for name, weight in fire.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert trained == {*FirePositions.score_biases}
    for options in ({"hidden": 0}, {"threshold": 0.0}):
        with pytest.raises(ValueError, match=r"model\.position\.hidden and threshold must be positive"):
            FirePositions(D, H, K, True, **options)
