"""Attention maps with labels: their images, rollout, what is logged of them, and the offline page without a browser."""

import html
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from decoded_maps import decode
from minitx.interpret import images
from minitx.interpret.attention_maps import AttentionMaps
from minitx.interpret.encoded_maps import by_tag, encoded, encoded_lens
from minitx.interpret.head_statistics import head_statistics
from minitx.interpret.html import page
from minitx.interpret.recording import KINDS
from minitx.tensorboard import map_format
from predictors import EVERY, H, built


@pytest.fixture
def maps() -> AttentionMaps:
    """A batch of two: four source and three target tokens, and two and two."""
    return built("encoder_decoder").attend(["3 1 4 1", "5 2"], ["1 4", "5"])


@pytest.mark.parametrize("example", [0, 1])
def test_each_layer_is_drawn_with_queries_by_row_and_keys_by_column(maps: AttentionMaps, example: int) -> None:
    maps.cross = [layer.bfloat16() for layer in maps.cross]
    shown = [*images.pictures(maps, example)]
    assert [(kind, layer) for kind, layer, _ in shown] == [(kind, layer) for kind in KINDS for layer in (1, 2)]
    for kind, layer, image in shown:
        rows, columns = (maps.tokens[side][example] for side in KINDS[kind])
        weights = getattr(maps, kind)[layer - 1][example, :, : len(rows), : len(columns)]  # padding is not drawn
        assert image == images.heads_image(weights.float().numpy(), rows, columns)


@pytest.mark.parametrize("architecture", EVERY)
def test_encoded_maps_are_those_of_each_text(architecture: str) -> None:
    """Kind by kind, with the statistics of the heads; padding has no label and no weight."""
    maps = built(architecture).attend(["3 1 4 1", "5"], None if architecture == "encoder_only" else ["1 4", "5 5 6"])
    for example in (0, 1):
        found = encoded(maps, example)
        assert [*found] == [kind for kind in KINDS if getattr(maps, kind)]
        for kind, items in found.items():
            header, shown = decode(items)
            assert header["statistics"] == [part._asdict() for part in head_statistics(maps.layers(kind, example))]
            queries, keys = ([label is not None for label in header[side]] for side in ("queries", "keys"))
            for side, real in zip(KINDS[kind], (queries, keys), strict=True):
                assert sum(real) == len(maps.tokens[side][example])
                assert real == sorted(real, reverse=True), "padding is on the right"
            rollout = [] if kind == "cross" else [maps.rollout(kind, example)[None]]
            assert header["extras"] == ["rollout"] * len(rollout)
            for one, whole in zip(shown, [layer[example] for layer in getattr(maps, kind)] + rollout, strict=True):
                assert np.abs(one[:, : whole.size(1), : whole.size(2)] - whole.numpy()).max() <= 1 / 255
                assert not one[:, queries][:, :, np.logical_not(keys)].any()


def test_the_last_tokens_alone_keep_the_statistics_of_all(maps: AttentionMaps) -> None:
    for kind, items in encoded(maps, last=2).items():
        (header, shown), (whole, every) = decode(items), decode(encoded(maps)[kind])
        assert (header["statistics"], header["keys"]) == (whole["statistics"], whole["keys"][-2:])
        for one, complete in zip(shown, every, strict=True):
            assert np.array_equal(one, complete[:, -2:, -2:])


def test_a_lens_of_fewer_layers_ends_with_its_last() -> None:
    shares = {"logit": np.full((2, 4), 0.25, np.float32), "decoder": np.full((2, 3), 0.25, np.float32)}
    _, (logit, decoder) = decode(encoded_lens(["a", "b"], shares))
    assert np.array_equal(logit, decoder)


def test_one_image_holds_every_head(maps: AttentionMaps, tmp_path: Path, saved_figures: list[Figure]) -> None:
    maps.tokens["target"][1][:2] = "$a_1$", "Щ" * 12  # no formula, and wide
    maps.save_image(tmp_path / "maps.png", example=1, title="$a$ \u202eb\x07")
    assert Image.open(tmp_path / "maps.png").format == "PNG"
    built("encoder_decoder").attend("3 1 4", "").save_png(tmp_path / "maps.png")  # of an empty answer, a single query
    axes = saved_figures[0].axes[0]
    heads = [head for kind in KINDS for layer in maps.layers(kind, example=1) for head in layer.weights.numpy()]
    for image, head in zip(axes.images, heads, strict=True):
        assert np.array_equal(image.get_array(), head)
        left, right, bottom, top = image.get_extent()
        assert (right - left) / (bottom - top) == pytest.approx(head.shape[1] / head.shape[0])
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("$a_1$") == 2 * 1 + 2 * H + 2 * 1, "rows once for a layer, columns for each head"
    places = [(text.get_text()[:5], text.get_window_extent()) for text in axes.texts]
    names = [place for text, place in places if text in ("layer", "head ", "each ")]
    assert not [name for text, place in places if text == "Щ" * 5 for name in names if place.overlaps(name)]
    assert r"$a$ \u202eb\x07" in texts, "characters of control and direction are escaped"


def test_rollout_is_the_product_of_half_attention_and_half_identity(maps: AttentionMaps) -> None:
    for kind, side, example in (("encoder", "source", 0), ("decoder", "target", 0), ("decoder", "target", 1)):
        size = len(maps.tokens[side][example])
        expected = np.eye(size)
        for layer in getattr(maps, kind):
            mean = layer[example, :, :size, :size].double().numpy().mean(axis=0)
            expected = (0.5 * mean + 0.5 * np.eye(size)) @ expected  # later layers on the left
        assert maps.rollout(kind, example).numpy() == pytest.approx(expected, abs=1e-6)
    half_empty = AttentionMaps({"source": [["a", "b"]]}, [torch.tensor([[[[0.0, 0.0], [0.2, 0.8]]]])])
    assert half_empty.rollout("encoder").tolist()[0] == [1, 0], "rows without attention keep their own token"
    for method, kind, kinds in ((maps.rollout, "cross", "encoder"), (maps.layers, "nonsense", "encoder, cross")):
        with pytest.raises(ValueError, match=f"expected {kinds} or decoder, got {kind}"):
            method(kind)
    with pytest.raises(ValueError, match="expected decoder, got encoder"):
        AttentionMaps({"target": [["a"]]}, decoder=[torch.ones(1, 1, 1, 1)]).rollout("encoder")


MAPS = built().attend(["3 1", "5"])


def test_without_maps_or_with_two_of_one_name_no_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no attention"):
        AttentionMaps({"source": [["a"]]}).save_html(tmp_path / "none.html")
    with pytest.raises(ValueError, match="choose another"):
        MAPS.save_html(tmp_path / "none.html", beside={MAPS.name: MAPS})
    assert not list(tmp_path.iterdir())
    assert AttentionMaps({})._repr_html_() == "<p>no attention maps</p>"


def test_a_notebook_shows_the_page_in_a_sandboxed_frame() -> None:
    frame = r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts allow-downloads" .*></iframe>'
    (shown,) = re.findall(frame, MAPS._repr_html_())
    assert html.unescape(shown) == page({MAPS.name: by_tag(MAPS)})


def test_files_of_the_page_are_small_name_no_address_and_define_no_name_twice() -> None:
    """Nor do they parse markup: tests/test_sources.py."""
    script = page({"maps": by_tag(MAPS)}).rpartition("<script>")[2]
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert len(names) == len({*names}) > 50
    for file in (Path(map_format.__file__).parent / "static").iterdir():
        text = file.read_text()
        assert text.count("\n") <= 350, file
        assert max(map(len, text.splitlines())) <= 120, file
        assert not re.search(r"https?:", text), file
