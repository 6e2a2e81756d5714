"""Images by their pixels: coloured ones are weights, grey ones are background or text."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from minitx.interpret import images


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB")).astype(int)


def coloured(image: Image.Image) -> np.ndarray:
    """Which pixels show a weight."""
    shown = pixels(image)
    return (shown.max(axis=2) - shown.min(axis=2)) > 0


def panels(image: Image.Image) -> list[np.ndarray]:
    """The coloured rectangles from left to right: what each head shows."""
    mask = coloured(image)
    columns, found = np.flatnonzero(mask.any(axis=0)), []
    for group in np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1):
        rows = np.flatnonzero(mask[:, group].any(axis=1))
        assert mask[rows[0] : rows[-1] + 1, group].all(), "a head is one full rectangle"
        found.append(pixels(image)[rows[0] : rows[-1] + 1, group[0] : group[-1] + 1])
    return found


def cells(panel: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """One colour for each weight, [rows, columns, 3]; all pixels of a cell must have it."""
    height, width = panel.shape[0] // rows, panel.shape[1] // columns
    assert panel.shape[:2] == (rows * height, columns * width)
    parts = panel.reshape(rows, height, columns, width, 3)
    assert (parts == parts[:, :1, :, :1]).all(), "a cell has one colour"
    return parts[:, 0, :, 0]


def draw(weights: np.ndarray) -> Image.Image:
    _, queries, keys = weights.shape
    return images.heads_image(weights, [f"q{row}" for row in range(queries)], [f"k{column}" for column in range(keys)])


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Every text drawn, and its height."""
    texts, text = [], ImageDraw.ImageDraw.text

    def note(self: ImageDraw.ImageDraw, xy: tuple[float, float], content: str, **options: object) -> object:
        texts.append((content, xy[1]))
        return text(self, xy, content, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", note)
    return texts


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (1, 3, 5), (4, 5, 3), (2, 1, 9), (3, 20, 20), (1, 2, 3), (1, 1, 600), (1, 600, 1), (1, 700, 700),
     (1, 100, 300)],
)  # fmt: skip
def test_each_weight_is_a_cell_with_the_colour_of_its_root(shape: tuple[int, int, int]) -> None:
    """Queries down and keys across; large for short sequences, small for long ones; other weights do not matter."""
    weights = np.random.default_rng(1).random(shape)
    for place, value in enumerate((np.nan, -1.0, 2.0, np.inf)[: shape[2] - 1]):
        weights[0, 0, place] = value
    cell = max(1, min(images.CELL, images.MAX_SIDE // max(shape[1:])))
    for head, panel in zip(np.nan_to_num(weights), panels(draw(weights)), strict=True):
        assert panel.shape[:2] == (shape[1] * cell, shape[2] * cell)
        places = np.sqrt(head.clip(0, 1)) * (len(images.RAMP) - 1)
        channels = [np.interp(places, range(len(images.RAMP)), channel) for channel in np.transpose(images.RAMP)]
        assert np.abs(cells(panel, *shape[1:]) - np.stack(channels, axis=-1)).max() <= 3


def test_every_token_is_named_once_and_shown_beside_each_head(written: list[tuple[str, float]]) -> None:
    """Rows are named left of the weights, columns above them."""
    image = images.heads_image(np.zeros((2, 3, 3)), ["up", "down", "mm"], ["a", "b", "c"])
    assert sorted(text for text, _ in written) == ["a", "b", "c", "down", "head 1", "head 2", "mm", "up"]
    one, other = np.split(np.asarray(image)[images.FONT_SIZE + 4 :], 2, axis=1)  # below the titles
    assert np.array_equal(one, other)
    mask = coloured(image)[:, : image.width // 2]
    inked = ~mask & (pixels(image)[:, : image.width // 2, 0] < 128)
    left, top = mask.any(axis=0).argmax(), mask.any(axis=1).argmax()
    assert inked[top:, :left].any()
    assert inked[images.FONT_SIZE + 4 : top, left:].any()
    assert not inked[top:, left:].any()
    across = inked[images.FONT_SIZE + 4 : top, left:].any(axis=0).nonzero()[0] - (images.CELL - 1) / 2
    assert np.abs(across - images.CELL * (across / images.CELL).round()).max() < images.CELL / 4, "above its column"


@pytest.mark.parametrize(("number", "token", "turned"), [(6, "Åg", 0), (6, "Ågffff", 1), (100, "Åg", 1)])
@pytest.mark.parametrize("side", ["row", "column"])
def test_a_label_is_whole_and_centred_beside_its_cells(side: str, number: int, token: str, turned: int) -> None:
    """Above columns it reads upwards where it does not fit."""
    blank, named = [""] * number, ["", "", "", "", token, *[""] * (number - 5)]
    image = images.heads_image(np.zeros((1, number, number)), *((named, blank) if side == "row" else (blank, named)))
    cells, inked = coloured(image), ~coloured(image) & (pixels(image)[:, :, 0] < 200)
    inked[: images.FONT_SIZE + 4] = False  # the title
    alone = Image.new("L", (99, 99), 255)
    ImageDraw.Draw(alone).text((9, 9), token, fill=40, font=images._font())
    shown, whole = (ink[ink.any(axis=1)][:, ink.any(axis=0)] for ink in (inked, np.asarray(alone) < 200))
    assert shown.shape == (whole.T if turned and side == "column" else whole).shape
    along, across = (1, 0) if side == "row" else (0, 1)  # axes to sum over
    ink, places = (part.any(axis=along).nonzero()[0] for part in (inked, cells))
    assert abs(ink[[0, -1]].mean() - np.split(places, number)[4].mean()) < 2
    ink, places = (part.any(axis=across).nonzero()[0] for part in (inked, cells))
    assert 2 <= places[0] - ink[-1] <= images.FONT_SIZE / 2, "near the cells, but apart"


def test_only_unprintable_tokens_are_escaped_and_long_ones_cut(written: list[tuple[str, float]]) -> None:
    plain = ["a", "é", "<eos>", "字", "twelve chars", "\\n"]
    tokens = [" ", "    ", " \n", "\n", "\x00", "\x1b", "\u2028", *plain, "né\n", "abcdefghijklmnop"]
    images.heads_image(np.zeros((1, len(tokens), 1)), tokens, ["x"])
    shown = ["␣", "␣␣␣␣", "␣\\n", "\\n", "\\x00", "\\x1b", "\\u2028", *plain, "né\\n", "abcdefghijk…"]
    assert sorted(text for text, _ in written) == sorted([*shown, "x", "head 1"])


@pytest.mark.parametrize("number", [30, 80, 300])
def test_labels_do_not_overlap(number: int, written: list[tuple[str, float]]) -> None:
    draw(np.zeros((1, number, number)))
    rows = [height for text, height in written if text.startswith("q")]
    assert len(rows) > 5
    assert min(np.diff(rows)) >= images.FONT_SIZE - 1


def test_letters_and_the_signs_of_tokenizers_have_a_shape() -> None:
    """Not the box that stands for a character that the font lacks."""
    drawn = [images.heads_image(np.zeros((1, 1, 1)), [sign], [""]).tobytes() for sign in "\uffff␣▁ĠĊßüéñŁбжωא…→"]
    assert len(set(drawn)) == len(drawn)
