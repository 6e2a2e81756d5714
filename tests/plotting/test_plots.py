"""Plots: their lines, bands and colours; in those of commands nothing covers anything else, and each file opens."""

import re
import xml.etree.ElementTree as xml
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

import minitx
from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main
from minitx.config.schema import config_from_dict
from minitx.interpret.attention_maps import AttentionMaps
from minitx.interpret.images import RAMP
from minitx.plotting import FORMATS
from minitx.plotting.config_pictures import draw
from minitx.plotting.curves import Curve, accuracy_by_length
from minitx.plotting.heatmaps import draw_tables
from minitx.plotting.panels import Heat, sheet
from minitx.plotting.style import STYLE, new_figure, save
from minitx.training.resolve import resolve
from predictors import SEQUENCES, trained

OVERLAP = 1.5  # pixels by which boxes may overlap: they include the space around letters
COMMANDS = {
    "attend": ["attend", "3 1 4", "--out"], "attend in rows": ["attend", "3 1 4 " * 14, "--out"],
    "lens": ["lens", "3 1 4 " * 14, "--target", "3 1 4 " * 12, "--out"],
    "evaluate": ["evaluate", "--lengths", "1:9", "--plot"], "ablate": ["ablate", "--examples", "8", "--out"],
    "evaluate beyond training": ["evaluate", "--lengths", "8:9", "--plot"],
}  # fmt: skip
NAMES = (*COMMANDS, "describe", "curves", "sweep")


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    """The figures of the commands and of minitx.curves, by name."""
    folder = tmp_path_factory.mktemp("figures")
    model, contents = str(folder / "model.ckpt"), trained("encoder_decoder")
    contents["minitx"]["config"]["data"]["test_size"] = 40
    checkpoint.write(contents, model)
    schedule = {"name": "cosine", "warmup_steps": 100}
    planned = {"data": SEQUENCES, "model": {"position": {"name": "rope"}}, "optimizer": {"schedule": schedule}}
    with SummaryWriter(str(folder / "run")) as writer:
        for step in range(10):
            for name in ("training/loss", "validation/loss")[: 1 if step % 4 else 2]:
                writer.add_scalar(name, 2.0 ** -min(step, 3), step)
            for kind, count in (("decoder", 4), ("encoder", 30)):  # lines in every corner
                for head in range(count):
                    tag = f"heads_{kind}/entropy/layer_{1 + head // 3}.head_{1 + head % 3}"
                    writer.add_scalar(tag, head * (step - 5), step)
            writer.add_scalar("validation_heads_decoder/previous_token/layer_1.head_1", step, step)
    found: dict[str, Figure] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STYLE, "figure.dpi", 80)
        name = ""
        patch.setattr(Figure, "savefig", lambda self, *args, **kwargs: found.update({name: self}))
        out = str(folder / "x.png")
        for name, (command, *words) in COMMANDS.items():  # noqa: B007 (savefig uses the name)
            main([command, model, *words, out])
        name = "describe"
        draw(resolve(config_from_dict(planned)), Path(out))
        name = "curves"
        minitx.curves(folder / "run").save_image(out)
        name, seeds = "sweep", [[0.1 * seed * n % 1 for seed in range(3)] for n in range(20)]
        curves = [Curve(f"{n} of the settings of a sweep", range(1, 21), seeds[n:] + seeds[:n]) for n in range(10)]
        keys = "model.position.name and optimizer.lr and data.length"
        accuracy_by_length(Path(out), curves, f"{'long_name_' * 8}: exact match", (3, 9), keys)
        with matplotlib.rc_context(STYLE):
            for figure in found.values():
                FigureCanvasAgg(figure).draw()
    return found


def beyond(axis: Axis) -> list[Text]:
    """Labels of ticks outside the axes, which are not drawn."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_covers_anything_and_heat_maps_have_scales(figures: dict[str, Figure], name: str) -> None:
    figure = figures[name]
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert bool(bars) == any(axes.images for axes in figure.axes)
    assert bool(bars) == (name in ("attend", "attend in rows", "lens", "ablate", "describe"))
    legends = [legend.get_window_extent() for legend in figure.findobj(Legend)]
    assert bool(legends) == (name in ("evaluate", "evaluate beyond training", "curves", "sweep"))
    for axes in figure.axes:
        covered = [inside for legend in legends if (inside := Bbox.intersection(legend, axes.bbox)) is not None]
        for line in axes.lines:
            path = line.get_path().transformed(line.get_transform())
            crossed = any(path.intersects_bbox(box, filled=False) for box in covered)
            assert not crossed, (axes.get_title(loc="left"), line.get_label())

    hidden = {label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in beyond(axis)}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    texts = [text for text in texts if text not in hidden and text.get_window_extent().width > 0]
    found = np.array([text.get_window_extent().extents for text in texts])  # left, bottom, right and top in pixels
    width, height = figure.canvas.get_width_height()
    outside = (found[:, :2] < -OVERLAP).any(1) | (found[:, 2:] > np.array([width, height]) + OVERLAP).any(1)
    assert [text.get_text() for text, out in zip(texts, outside, strict=True) if out] == []
    shared = np.minimum(found[:, None, 2:], found[None, :, 2:]) - np.maximum(found[:, None, :2], found[None, :, :2])
    pairs = np.argwhere(np.triu((shared > OVERLAP).all(-1), 1))
    assert [(texts[one].get_text(), texts[other].get_text()) for one, other in pairs] == []
    assert min(text.get_fontsize() for text in texts) >= 7


@pytest.mark.parametrize("name", ["evaluate", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES)])
def test_files_open(figures: dict[str, Figure], name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf or \.svg, got .*x\.jpg"):
        save(figures[name], tmp_path / "x.jpg")
    assert list(tmp_path.iterdir()) == []
    png, pdf, svg = (save(figures[name], tmp_path / f"x{ending.upper()}") for ending in FORMATS)
    width, height = figures[name].get_size_inches()
    with Image.open(png) as image:
        assert (image.format, image.width / image.height) == ("PNG", pytest.approx(width / height, rel=0.01))
    content = pdf.read_bytes()
    assert (content[:5], content.rstrip()[-5:]) == (b"%PDF-", b"%%EOF")
    assert len(re.findall(rb"/Type /Page\b", content)) == 1
    root = xml.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * width, rel=0.01)
    assert len(root.findall(".//{*}path")) + len(root.findall(".//{*}use")) > 20


def test_no_key_is_lost_in_a_small_picture(saved_figures: list[Figure], tmp_path: Path) -> None:
    for size, keys, every in ((10, [0], 1), (130, [0], 17), (300, [0, 1, 150, 299], 39)):
        weights = torch.zeros(1, 16, size, size)
        for head in range(16):
            weights[0, head, :, keys[head % len(keys)]] = 1.0
        AttentionMaps({"source": [["a"] * size]}, [weights]).save_image(tmp_path / "x.png")
        with Image.open(tmp_path / "x.png") as image:
            last = (np.asarray(image.convert("RGB")) == np.round(np.array(RAMP[-1])).astype(np.uint8)).all(axis=2)
        assert (last.sum(axis=0) > 100).sum() >= 16, size
        texts = [text.get_text() for text in saved_figures[-1].axes[0].texts]
        assert texts.count("a") == (1 + 16) * -(-size // every), "rows once, columns for each head"
        assert (f"one token in {every} has a label" in texts) == (every > 1)


def test_a_long_title_is_not_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    title = "a title of many words " * 4
    save(new_figure(3.0, 2.0, "\U00012000"), tmp_path / "x.png")  # cuneiform
    save(new_figure(3.0, 2.0, title), tmp_path / "x.png")
    assert capsys.readouterr().err.count("x.png: some characters have no glyph in the installed fonts;") == 1
    AttentionMaps({"source": [["a"]]}, [torch.ones(1, 1, 1, 1)]).save_image(tmp_path / "maps.png", title=title)
    for name in ("x.png", "maps.png"):
        with Image.open(tmp_path / name) as image:
            grey = np.asarray(image.convert("L"))
        assert grey.min() < 100 < 200 < grey[:, -4:].min()


def test_curves_show_their_own_points_in_the_colour_of_their_layer(figures: dict[str, Figure]) -> None:
    """Validation at its own steps, each marked, beside training; of many heads each layer has a colour."""
    (axes,) = (axes for axes in figures["curves"].axes if axes.get_title(loc="left") == "loss")
    training, validation = axes.lines
    assert [*training.get_xdata()] == list(range(10))
    assert ([*validation.get_xdata()], validation.get_marker()) == ([0, 4, 8], "o")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["training", "validation"]
    (axes,) = (axes for axes in figures["curves"].axes if axes.get_title(loc="left") == "heads_encoder/entropy")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [str(layer) for layer in range(1, 11)]
    assert axes.get_legend().get_title().get_text() == "layer"
    colours = [tuple(np.ravel(line.get_color())) for line in axes.lines]
    assert (len(set(colours)), colours) == (10, [colours[head - head % 3] for head in range(30)])


def test_a_table_of_many_tokens_is_continued_below_and_titles_end_in_an_ellipsis(figures: dict[str, Figure]) -> None:
    panels = [axes for axes in figures["lens"].axes if axes.get_title(loc="left")]
    stacks, parts = ("decoder", "encoder, read by the decoder"), ("1 to 19", "20 to 37")
    assert [axes.get_title(loc="left") for axes in panels] == [f"{name}, {part}" for name in stacks for part in parts]
    read = [tick.get_text() for axes in panels for tick in axes.get_xticklabels()]
    assert (read, [len(axes.texts) for axes in panels]) == (["<bos>", *"314" * 12] * 2, [3 * 19, 3 * 18] * 2)
    titles = (figures["lens"].get_suptitle(), figures["attend in rows"].axes[0].texts[0].get_text())
    assert [" ".join(title.split())[-6:] for title in titles] == ["1 4 3…"] * 2
    assert figures["describe"].get_suptitle() == "run: the first 6 positions"


def test_no_damage_has_a_negative_zero(figures: dict[str, Figure]) -> None:
    texts = [text.get_text() for axes in figures["ablate"].axes for text in axes.texts]
    assert (len(texts), [text for text in texts if re.match(r"-0\.0*($|\n)", text)]) == (2 * 3 * 2 * 2, [])


def test_curves_are_percent_of_means_with_bands_inside_the_picture(saved_figures: list[Figure], tmp_path: Path) -> None:
    curves = [Curve("rope", [1, 2, 3], [[1.0, 0.8], [0.5, 0.7], [0.0, 0.1]]), Curve("none", [1, 2], [[0.2], [0.1]])]
    accuracy_by_length(tmp_path / "new" / "a.png", curves, "reverse", (1, 2), "scheme")
    (axes,) = saved_figures[0].axes
    assert [list(line.get_ydata()) for line in axes.lines] == [pytest.approx([90, 60, 5]), pytest.approx([20, 10])]
    assert [list(line.get_xdata()) for line in axes.lines] == [[1, 2, 3], [1, 2]]
    (band,) = axes.collections  # a single seed has none
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.0, 100.0), "cut where shares end"
    shade = axes.patches[0]
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (0.5, 2.5)
    legend = axes.get_legend()
    assert [text.get_text() for text in (legend.get_title(), *legend.get_texts())] == ["scheme", "rope", "none"]
    assert ("mean of 1 to 2 seeds" in (note := axes.texts[-1]).get_text(), note.anncoords) == (True, "offset points")
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 2


def test_one_curve_needs_no_legend_and_many_differ(saved_figures: list[Figure], tmp_path: Path) -> None:
    """And pyplot keeps none of the figures."""
    accuracy_by_length(tmp_path / "a.png", [Curve("x", [4], [[0.5]])], "copy")
    (axes,) = saved_figures[0].axes
    assert (axes.get_legend(), [*axes.patches], [*axes.texts]) == (None, [], [])
    assert [tick for tick in axes.get_xticks() if 3.5 <= tick <= 4.5] == [4]
    accuracy_by_length(tmp_path / "a.png", [Curve(str(n), [1, 2], [[0.1], [0.2]]) for n in range(12)], "many")
    assert len({(line.get_color(), line.get_linestyle()) for line in saved_figures[1].axes[0].lines}) == 12
    assert "matplotlib.pyplot" not in __import__("sys").modules or not matplotlib.pyplot.get_fignums()


def test_signed_values_are_centred_and_nonfinite_ones_masked(saved_figures: list[Figure], tmp_path: Path) -> None:
    values, zeros, holes = np.array([[1.0, -4.0], [np.inf, np.nan]]), np.zeros((2, 2)), np.full((2, 2), np.nan)
    heats = (values, "RdBu_r"), (values, "magma"), (values, "twilight"), (zeros, "RdBu_r"), (holes, "magma")
    sheet(tmp_path / "a.png", "one", [Heat("a", part, "x", "y", colours) for part, colours in heats])
    centred, other, angles, *_ = (part.images[0] for part in saved_figures[0].axes if part.get_title(loc="left"))
    assert [part.get_clim() for part in (centred, other, angles)] == [(-4.0, 4.0), (-4.0, 1.0), (0.0, 2 * np.pi)]
    assert centred.get_array().mask.tolist() == [[False, False], [True, True]]


def test_a_table_too_long_for_a_picture_names_the_page(saved_figures: list[Figure], tmp_path: Path) -> None:
    table = ("decoder", ["1"], ["x"] * 2000, np.zeros((1, 2000)), [["y"] * 2000])
    draw_tables(tmp_path / "a.png", "lens", [table], "probability")
    assert saved_figures[0].get_supxlabel() == "the tokens are in the page, --out NAME.html"
    axes, _ = saved_figures[0].axes
    assert (len(axes.texts), axes.xaxis.get_major_formatter()(199)) == (0, "200"), "counted from one"
