from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import minitx
from minitx.config.schema import ModelConfig
from minitx.interpret import images
from minitx.interpret.attention_maps import AttentionMaps, attention_maps
from minitx.models.builder import build_model

H = 2


def random_maps(batch: int, queries: int, keys: int, layers: int = 2) -> list[Tensor]:
    return [torch.rand(batch, H, queries, keys).softmax(dim=-1) for _ in range(layers)]


@pytest.fixture
def maps() -> AttentionMaps:
    """A batch of two: four source and three target tokens, and two and one."""
    torch.manual_seed(1)
    tokens = {"source": [["a", "b", "c", "d"], ["e", "f"]], "target": [["x", "y", "z"], ["w"]]}
    return AttentionMaps(tokens, random_maps(2, 4, 4), random_maps(2, 3, 3), random_maps(2, 3, 4))


@pytest.fixture
def calls_of_heads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, list[str], list[str]]]:
    """The arguments of images.heads."""
    calls = []
    heads = images.heads

    def note(weights: np.ndarray, rows: list[str], columns: list[str]) -> Image.Image:
        calls.append((weights, rows, columns))
        return heads(weights, rows, columns)

    monkeypatch.setattr(images, "heads", note)
    return calls


def test_kinds_that_an_architecture_lacks_have_no_picture() -> None:
    alone = AttentionMaps({"target": [["a", "b"]]}, decoder=random_maps(1, 2, 2, layers=3))
    assert [(picture.kind, picture.layer) for picture in alone.pictures()] == [
        ("decoder", layer) for layer in (1, 2, 3)
    ]
    assert list(AttentionMaps({}).pictures()) == []


@pytest.mark.parametrize("example", [0, 1])
def test_queries_are_named_by_rows_and_keys_by_columns(maps: AttentionMaps, calls_of_heads: list, example: int) -> None:
    shown = [(picture.kind, picture.layer) for picture in maps.pictures(example)]
    assert shown == [(kind, layer) for kind in ("encoder", "decoder", "cross") for layer in (1, 2)]
    source, target = maps.tokens["source"][example], maps.tokens["target"][example]
    expected = [(source, source)] * 2 + [(target, target)] * 2 + [(target, source)] * 2
    assert [(rows, columns) for _, rows, columns in calls_of_heads] == expected
    for (weights, rows, columns), whole in zip(calls_of_heads, maps.encoder + maps.decoder + maps.cross, strict=True):
        assert weights.shape == (H, len(rows), len(columns)), "padding is not drawn"
        assert np.array_equal(weights, whole[example, :, : len(rows), : len(columns)].numpy())


def test_half_precision_maps_have_pictures(calls_of_heads: list) -> None:
    weights = torch.rand(1, H, 2, 2).bfloat16()
    list(AttentionMaps({"target": [["a", "b"]]}, decoder=[weights]).pictures())
    assert np.array_equal(calls_of_heads[0][0], weights[0].float().numpy())


@pytest.mark.parametrize("example", [0, 1])
def test_one_png_holds_all_the_pictures(maps: AttentionMaps, tmp_path: Path, example: int) -> None:
    maps.save_png(tmp_path / "maps.png", example)
    with Image.open(tmp_path / "maps.png") as opened:
        assert opened.format == "PNG"
        whole = np.asarray(opened.convert("RGB"))
    parts = [np.asarray(picture.image.convert("RGB")) for picture in maps.pictures(example)]
    assert whole.shape[1] >= max(part.shape[1] for part in parts)
    below = 0
    for part in parts:  # stacked vertically
        height, width = part.shape[:2]
        places = [
            top
            for top in range(below, whole.shape[0] - height + 1)
            if np.array_equal(whole[top : top + height, :width], part)
        ]
        assert places, "a picture is missing"
        below = places[0] + height


def test_attention_maps_are_those_of_one_forward() -> None:
    torch.manual_seed(1)
    config = ModelConfig(architecture="encoder_decoder", d_model=16, n_heads=H, n_layers=12, vocab_size=9)
    model = build_model(config).eval()
    source, target = torch.randint(9, (2, 5)), torch.randint(9, (2, 3))
    tokens = {"source": [["s"] * 5] * 2, "target": [["t"] * 3] * 2}
    maps = attention_maps(model, {"src_ids": source, "tgt_ids": target}, tokens)
    assert maps.tokens is tokens
    with torch.no_grad(), minitx.record_attention(model) as recorded:
        model(source, target)
    for kind, path in (
        ("encoder", "encoder.layers.{}.self_attn"),
        ("decoder", "decoder.layers.{}.self_attn"),
        ("cross", "decoder.layers.{}.cross_attn"),
    ):
        layers = getattr(maps, kind)
        assert len(layers) == 12
        for number, weights in enumerate(layers):  # layer 10 comes after layer 9, not after layer 1
            assert torch.equal(weights, recorded[path.format(number)]), f"{kind} {number}"
            assert not weights.requires_grad
