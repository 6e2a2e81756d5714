"""Recording changes no output and no gradient, and restores the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minitx import record_attention
from minitx.models.transformers import Transformer
from minitx.nn import POSITIONS, MultiHeadAttention, scaled_dot_product_attention

VOCAB, HEADS = 11, 4
architectures = pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only", "encoder_only"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def close(one: Tensor, other: Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def inputs(architecture: str) -> tuple[Tensor, ...]:
    """Arguments of forward: a ragged batch of 3 with 6 source and 5 target tokens."""
    src, tgt = torch.randint(0, VOCAB, (3, 6)), torch.randint(0, VOCAB, (3, 5))
    src_keep = torch.arange(6)[None] < torch.tensor([[6], [3], [5]])
    tgt_keep = torch.arange(5)[None] < torch.tensor([[2], [5], [4]])
    return (src, tgt, src_keep, tgt_keep) if architecture == "encoder_decoder" else (tgt, tgt_keep)


def attentions(model: Transformer) -> dict[str, MultiHeadAttention]:
    return {name: part for name, part in model.named_modules() if isinstance(part, MultiHeadAttention)}


@architectures
@pytest.mark.parametrize("name", [*POSITIONS, "all_hooks"])
def test_logits_are_unchanged(name: str, architecture: str, tiny) -> None:
    model, arguments = tiny(architecture, name), inputs(architecture)
    before = model(*arguments)
    with record_attention(model):
        recorded = model(*arguments)
    assert (recorded - before).abs().max() <= 1e-6 * before.abs().max()
    assert torch.equal(model(*arguments), before)


@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 2}, {"window": 3, "qk_norm": True}], ids=str)
def test_names_are_module_paths_and_shapes_are_theirs(options: dict, tiny) -> None:
    model = tiny("encoder_decoder", **options)
    with record_attention(model) as maps:
        assert not maps
        model(*inputs("encoder_decoder"))
    shapes = {"encoder": (3, HEADS, 6, 6), "decoder": (3, HEADS, 5, 5), "cross": (3, HEADS, 5, 6)}
    expected = {}
    for layer in range(2):
        expected[f"encoder.layers.{layer}.self_attn"] = shapes["encoder"]
        expected[f"decoder.layers.{layer}.self_attn"] = shapes["decoder"]
        expected[f"decoder.layers.{layer}.cross_attn"] = shapes["cross"]
    assert {name: tuple(weights.shape) for name, weights in maps.items()} == expected
    assert all(isinstance(model.get_submodule(name), MultiHeadAttention) for name in maps)
    assert not any(weights.requires_grad for weights in maps.values())


def test_each_map_is_that_of_its_own_module(tiny) -> None:
    """Layer by layer, by hand: the recorded weights are those of the module under that name."""
    model, (ids, keep) = tiny("decoder_only"), inputs("decoder_only")
    with record_attention(model) as maps:
        model(ids, keep)
    x = model.embedding(ids)
    for index, layer in enumerate(model.decoder.layers):
        normed, part = layer.add_norm_self.norm(x), layer.self_attn
        q, k = (proj(normed).unflatten(2, (HEADS, -1)).transpose(1, 2) for proj in (part.q_proj, part.k_proj))
        seen = keep[:, None, None, :] & torch.ones(5, 5).tril().bool()
        scores = (q @ k.transpose(2, 3) / part.d_head**0.5).masked_fill(~seen, -torch.inf)
        close(maps[f"decoder.layers.{index}.self_attn"], scores.softmax(-1), 1e-5)
        x = layer(x, None, part.prepare(x, mask=keep[:, None, None, :], causal=True))


@architectures
def test_rows_sum_to_one_and_padding_has_no_weight(architecture: str, tiny) -> None:
    model, arguments = tiny(architecture, "sinusoidal"), inputs(architecture)
    with record_attention(model) as maps:
        model(*arguments)
    for name, weights in maps.items():
        source = name.startswith("encoder") or "cross" in name
        keys = arguments[2] if source and architecture == "encoder_decoder" else arguments[-1]
        close(weights.sum(-1), torch.ones(weights.shape[:-1]), 1e-5)
        assert (weights.transpose(1, 3)[~keys] == 0).all()  # [B, S, T, H]
        assert (weights.transpose(1, 3)[keys] > 0).any()
        if name.startswith("decoder") and "self" in name:
            assert (weights.triu(1) == 0).all()


def test_recording_changes_no_gradient(tiny) -> None:
    model, arguments = tiny("encoder_decoder", "learned"), inputs("encoder_decoder")
    gradients = []
    for recording in (False, True):
        model.zero_grad()
        if recording:
            with record_attention(model):
                model(*arguments).square().mean().backward()
        else:
            model(*arguments).square().mean().backward()
        gradients.append({name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        close(gradients[1][name], gradient, 1e-5)


def test_the_last_call_stays(tiny) -> None:
    model = tiny("decoder_only")
    with record_attention(model) as maps:
        model(torch.randint(0, VOCAB, (2, 3)))
        model(torch.randint(0, VOCAB, (1, 4)))
    assert {tuple(weights.shape) for weights in maps.values()} == {(1, HEADS, 4, 4)}
    model(torch.randint(0, VOCAB, (2, 7)))
    assert {tuple(weights.shape) for weights in maps.values()} == {(1, HEADS, 4, 4)}  # nothing after the block


def test_the_attention_function_is_put_back_after_an_exception(tiny) -> None:
    model = tiny("encoder_decoder")
    own = attentions(model)["encoder.layers.1.self_attn"]

    def attend(*args, **kwargs):
        return scaled_dot_product_attention(*args, **kwargs)

    own.attention = attend
    with pytest.raises(RuntimeError, match="on the way"), record_attention(model):
        raise RuntimeError("on the way")
    for part in attentions(model).values():
        assert part.attention is (attend if part is own else scaled_dot_product_attention)


def test_nested_blocks_end_one_by_one(tiny) -> None:
    model = tiny("decoder_only")
    long, short = torch.randint(0, VOCAB, (1, 5)), torch.randint(0, VOCAB, (1, 2))
    with record_attention(model) as outer:
        with record_attention(model) as inner:
            model(long)
        assert {tuple(weights.shape) for weights in inner.values()} == {(1, HEADS, 5, 5)}
        assert {tuple(weights.shape) for weights in outer.values()} == {(1, HEADS, 5, 5)}
        model(short)
        assert {tuple(weights.shape) for weights in outer.values()} == {(1, HEADS, 2, 2)}
        assert {tuple(weights.shape) for weights in inner.values()} == {(1, HEADS, 5, 5)}
    assert all(part.attention is scaled_dot_product_attention for part in attentions(model).values())


def test_any_module_with_attention_inside(tiny) -> None:
    model = tiny("encoder_decoder")
    src, tgt, src_keep, _ = inputs("encoder_decoder")
    with record_attention(model.encoder) as maps:  # paths count from the module handed in
        model(src, tgt, src_keep)
    assert set(maps) == {"layers.0.self_attn", "layers.1.self_attn"}
    with record_attention(torch.nn.Linear(2, 2)) as maps:
        pass
    assert maps == {}
