"""Head masks, alone and with recording, compiled or not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from minitx import record_attention
from minitx.interpret.recording import attention_modules, head_mask
from minitx.nn import scaled_dot_product_attention

VOCAB, HEADS = 11, 4
ARCHITECTURES = ["encoder_decoder", "decoder_only", "encoder_only"]
architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def close(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, check_dtype=False)


def inputs(architecture: str) -> tuple[Tensor, ...]:
    """Arguments of forward: a ragged batch of 3 with 6 source and 5 target tokens."""
    src, tgt = torch.randint(0, VOCAB, (3, 6)), torch.randint(0, VOCAB, (3, 5))
    src_keep = torch.arange(6)[None] < torch.tensor([[6], [3], [5]])
    tgt_keep = torch.arange(5)[None] < torch.tensor([[2], [5], [4]])
    return (src, tgt, src_keep, tgt_keep) if architecture == "encoder_decoder" else (tgt, tgt_keep)


def last(architecture: str) -> str:
    """The path of an attention of the second layer."""
    kinds = {"encoder_decoder": "decoder.layers.1.cross_attn", "decoder_only": "decoder.layers.1.self_attn"}
    return kinds.get(architecture, "encoder.layers.1.self_attn")


def zeroed(model: nn.Module, path: str, factors: Tensor):
    """Multiply the input of o_proj, head by head, by factors [B, H]."""
    part = model.get_submodule(path)
    columns = factors.repeat_interleave(part.d_head, dim=-1)[:, None]
    return part.o_proj.register_forward_pre_hook(lambda _module, args: (args[0] * columns.to(args[0]),))


@architectures
@pytest.mark.parametrize("binary", [True, False])
def test_factors_scale_the_input_of_the_output_projection(architecture: str, binary: bool, tiny) -> None:
    """Row by row, with any factor or with 0 and 1; a mask for all rows is a mask for each."""
    model, arguments = tiny(architecture, "rope", n_kv_heads=2), inputs(architecture)
    before, factors = model(*arguments), torch.rand(3, HEADS) * 2
    factors = (factors > 1).float() if binary else factors
    with head_mask(model, {last(architecture): factors}):
        masked = model(*arguments)
    handle = zeroed(model, last(architecture), factors)
    close(masked, model(*arguments))
    handle.remove()
    assert not torch.allclose(masked, before, atol=1e-3)
    for row in range(3):
        with head_mask(model, {last(architecture): factors[row].tolist()}):
            close(model(*arguments)[row], masked[row])


@architectures
def test_the_gradient_is_the_derivative_by_the_factors(architecture: str, tiny) -> None:
    model, arguments, path = tiny(architecture, "rope").double(), inputs(architecture), last(architecture)
    factors = torch.ones(HEADS, dtype=torch.double, requires_grad=True)
    with head_mask(model, {path: factors}):
        model(*arguments).square().sum().backward()
    assert factors.grad.shape == (HEADS,)
    assert (factors.grad.abs() > 0).all()
    step = 1e-6
    with torch.no_grad():
        for head in range(HEADS):
            values = []
            for sign in (1, -1):
                moved = torch.ones(HEADS, dtype=torch.double)
                moved[head] += sign * step
                with head_mask(model, {path: moved}):
                    values.append(model(*arguments).square().sum())
            close((values[0] - values[1]) / (2 * step), factors.grad[head], 1e-4)


def test_a_mask_of_whole_numbers_reaches_a_half_precision_model(tiny) -> None:
    model, (ids, keep) = tiny("decoder_only", "rope").bfloat16(), inputs("decoder_only")
    with head_mask(model, {last("decoder_only"): torch.tensor([1, 0, 1, 1])}):
        assert model(ids, keep).dtype == torch.bfloat16


@architectures
@pytest.mark.parametrize("outside", ["record", "mask"])
def test_recording_and_masking_nest_in_both_orders(architecture: str, outside: str, tiny) -> None:
    """The weights of a masked head are recorded; its masked output reaches the next layer."""
    model, arguments = tiny(architecture, "rope"), inputs(architecture)
    masks = {name: torch.rand(HEADS) for name in attention_modules(model)}
    with head_mask(model, masks):
        expected = model(*arguments)
    if outside == "record":
        with record_attention(model) as maps, head_mask(model, masks):
            close(model(*arguments), expected)
    else:
        with head_mask(model, masks), record_attention(model) as maps:
            close(model(*arguments), expected)
    assert maps.keys() == masks.keys()
    with record_attention(model) as plain:
        model(*arguments)
    for name, weights in maps.items():
        close(weights.sum(-1), torch.ones(weights.shape[:-1]))  # the weights themselves are not masked
        first = ".0." in name and "cross" not in name
        assert torch.allclose(weights, plain[name], atol=1e-5) == first  # the first layer has nothing masked below it


def test_an_unknown_path_is_refused_with_the_known_ones(tiny) -> None:
    model = tiny("decoder_only")
    with (
        pytest.raises(ValueError, match=r"decoder\.layers\.9\.self_attn .* decoder\.layers\.1\.self_attn"),
        head_mask(model, {"decoder.layers.9.self_attn": [1] * HEADS}),
    ):
        pass
    assert all(part.attention is scaled_dot_product_attention for part in attention_modules(model).values())


@pytest.mark.parametrize("mask", [[1, 1, 0], torch.ones(3, 5), [1.0] * 5, 1.0], ids=str)
def test_another_number_of_heads_is_refused(mask, tiny) -> None:
    with (
        pytest.raises(ValueError, match=r"decoder\.layers\.0\.self_attn has 4 heads, got"),
        head_mask(tiny("decoder_only"), {"decoder.layers.0.self_attn": mask}),
    ):
        pass


# --- precision ------------------------------------------------------------------------------------------------------


@architectures
@pytest.mark.parametrize("softcap", [None, 1.0])
@pytest.mark.parametrize("kind", ["autocast", "weights"])
def test_recording_leaves_half_precision_logits_within_its_rounding(
    kind: str, softcap: float | None, architecture: str, tiny
) -> None:
    model, arguments = tiny(architecture, "rope", softcap=softcap), inputs(architecture)
    exact = model(*arguments)
    if kind == "weights":
        model = model.bfloat16()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        before = model(*arguments)
        with record_attention(model) as maps:
            recorded = model(*arguments)
    assert recorded.dtype == before.dtype == torch.bfloat16
    rounding = (before.float() - exact).abs().max()
    assert (recorded.float() - exact).abs().max() <= 2 * rounding + 0.05 * exact.abs().max()
    assert len(maps) == len(attention_modules(model))
    for weights in maps.values():
        close(weights.float().sum(-1), torch.ones(weights.shape[:-1]), 2e-2)


# --- compiled -------------------------------------------------------------------------------------------------------


def compiled(model: nn.Module, how: str) -> nn.Module:
    torch.compiler.reset()
    if how == "in place":
        model.compile(backend="eager")
        return model
    if how == "in parts":
        for name, part in model.named_children():
            if name in ("encoder", "decoder"):
                setattr(model, name, torch.compile(part, backend="eager"))
        return model
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize(
    ("how", "architecture"),
    [
        ("in place", "encoder_only"),
        ("around", "decoder_only"),
        ("in parts", "decoder_only"),
        pytest.param("in place", "encoder_decoder", marks=pytest.mark.slow),
        pytest.param("in parts", "encoder_decoder", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_model_is_recorded_and_masked_under_its_own_paths(how: str, architecture: str, tiny) -> None:
    plain, arguments = tiny(architecture, "rope", n_layers=1), inputs(architecture)
    paths, mask_of_two = list(attention_modules(plain)), {last(architecture).replace(".1.", ".0."): [0, 1, 1, 0]}
    before = plain(*arguments)
    with record_attention(plain) as expected:
        plain(*arguments)
    with head_mask(plain, mask_of_two):
        masked = plain(*arguments)
    model = compiled(plain, how)
    close(model(*arguments), before)
    with record_attention(model) as maps:
        close(model(*arguments), before)
    assert list(attention_modules(model)) == paths
    assert maps.keys() == expected.keys() == set(paths)
    for name, weights in maps.items():
        close(weights, expected[name])
    with head_mask(model, mask_of_two):
        close(model(*arguments), masked)
    close(model(*arguments), before)
    assert all(part.attention is scaled_dot_product_attention for part in attention_modules(model).values())


@pytest.mark.slow
def test_recording_with_generated_kernels(tiny) -> None:
    torch.compiler.reset()
    model, arguments = tiny("decoder_only", "rope"), inputs("decoder_only")
    before = model(*arguments)
    model.compile()
    with record_attention(model) as maps:
        close(model(*arguments), before, 1e-4)
    assert maps.keys() == set(attention_modules(model))
    close(model(*arguments), before, 1e-4)
