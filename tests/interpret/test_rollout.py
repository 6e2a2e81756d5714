"""Attention rollout: by hand, and what must hold of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minitx.interpret.attention_maps import AttentionMaps
from minitx.tensorboard.map_format import decode


def maps(layers: int = 3) -> AttentionMaps:
    """A batch of a source of four and one of two; targets of three and of one."""
    torch.manual_seed(0)
    tokens = {"source": [list("abcd"), list("ef")], "target": [list("xyz"), ["w"]]}
    encoder = [torch.rand(2, 2, 4, 4) for _ in range(layers)]
    for layer in encoder:
        layer[1, :, :, 2:] = 0.0  # padded keys
    decoder = [torch.rand(2, 2, 3, 3).tril() for _ in range(layers)]
    cross = [torch.rand(2, 2, 3, 4) for _ in range(layers)]
    sides = ([part / part.sum(-1, keepdim=True) for part in side] for side in (encoder, decoder, cross))
    return AttentionMaps(tokens, *sides)


@pytest.mark.parametrize("example", [0, 1])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_it_is_the_product_of_half_attention_and_half_identity(kind: str, example: int) -> None:
    found = maps()
    size = len(found.tokens["source" if kind == "encoder" else "target"][example])
    expected = np.eye(size)
    for layer in getattr(found, kind):
        mean = layer[example, :, :size, :size].double().numpy().mean(axis=0)
        expected = (0.5 * mean + 0.5 * np.eye(size)) @ expected  # later layers on the left
    rollout = found.rollout(kind, example)
    assert rollout.shape == (size, size)
    assert rollout.sum(dim=1).tolist() == pytest.approx([1.0] * size)
    assert rollout.flatten().tolist() == pytest.approx(expected.flatten().tolist(), abs=1e-6)
    if kind == "decoder":
        assert not rollout.triu(1).any(), "nothing comes from the future"


def test_rows_without_attention_keep_their_own_token() -> None:
    empty = AttentionMaps({"source": [["a", "b"]]}, [torch.zeros(1, 1, 2, 2)])
    assert torch.equal(empty.rollout("encoder"), torch.eye(2))


@pytest.mark.parametrize(("kind", "have"), [("cross", "encoder or decoder"), ("nonsense", "encoder or decoder")])
def test_it_is_of_self_attention_only(kind: str, have: str) -> None:
    with pytest.raises(ValueError, match=have):
        maps().rollout(kind)
    alone = AttentionMaps({"target": [["a"]]}, decoder=[torch.ones(1, 1, 1, 1)])
    with pytest.raises(ValueError, match="here of decoder; got encoder"):
        alone.rollout("encoder")


def test_it_is_among_what_is_logged_padding_zero() -> None:
    found = maps()
    encoded = found.encoded(example=1)
    for kind, size in (("encoder", 2), ("decoder", 1)):
        header, levels = decode(encoded[kind])
        assert header["extras"] == ["rollout"]
        whole = levels[-1][0]
        assert np.allclose(whole[:size, :size], found.rollout(kind, 1).numpy(), atol=1 / 255)
        assert not whole[size:].any()
        assert not whole[:, size:].any()
    assert decode(encoded["cross"])[0]["extras"] == []
