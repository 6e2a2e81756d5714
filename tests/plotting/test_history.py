"""minitx.curves reads and plots the logged scalars of a run."""

import io
from pathlib import Path

import pytest
from PIL import Image
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter

import minitx


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run/v0"
    with SummaryWriter(str(folder)) as writer:
        for step in (10, 20, 30):
            writer.add_scalar("training/loss", 1 / step, step)
            for head in ("layer_1.head_1", "layer_1.head_2"):
                writer.add_scalar(f"heads_decoder/entropy/{head}", step / 100, step)
        writer.add_scalar("final/exact_match", 0.5, 30)
    return folder


def test_points_as_logged_by_name_by_pattern_and_in_panels(run: Path) -> None:
    curves = minitx.curves(run)
    assert curves["training/loss"] == [(step, pytest.approx(1 / step)) for step in (10, 20, 30)]
    assert curves["final/exact_match"] == [(30, 0.5)]
    assert list(curves.of("final/*", "training/*").points) == ["final/exact_match", "training/loss"]
    assert set(curves.of("*.head_?").points) == {f"heads_decoder/entropy/layer_1.head_{n}" for n in (1, 2)}
    panels = {"training/loss": ["training"], "final/exact_match": ["final"], "heads_decoder/entropy": ["1.1", "1.2"]}
    assert [(panel.title, [label for label, _ in panel.curves]) for panel in curves._panels()] == [*panels.items()]


def test_a_run_folder_means_its_newest_version(run: Path) -> None:
    with SummaryWriter(str(run.parent / "v1")) as writer:
        writer.add_scalar("training/loss", 7.0, 1)
    (run.parent / "v2").mkdir()  # started, nothing logged yet
    SummaryWriter(str(run.parent / "v3")).close()
    assert minitx.curves(run.parent)["training/loss"] == [(1, 7.0)]


def test_of_a_resumed_run_the_later_values_count(run: Path) -> None:
    next(run.iterdir()).rename(run / "events.out.tfevents.1.first")  # read by name, which begins with the second
    with SummaryWriter(str(run), filename_suffix=".later") as writer:
        for step in (20, 40):
            writer.add_scalar("training/loss", 9.0, step)
    points = dict(minitx.curves(run)["training/loss"])
    assert (list(points), points[20]) == ([10, 20, 30, 40], 9.0)


@pytest.mark.filterwarnings("error:Glyph")
def test_single_points_are_plotted(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "字")) as writer:
        writer.add_scalar("training/loss", 7.0, 1)
        writer.add_scalar("validation/loss", 8.0, 1)
    curves, expected = minitx.curves(tmp_path / "字"), [("loss", [1], [("training", [7.0]), ("validation", [8.0])])]
    assert [(panel.title, panel.at, panel.curves) for panel in curves._panels()] == expected
    picture = curves._repr_png_()
    colours = Image.open(io.BytesIO(picture)).convert("RGB").getcolors(2**20)
    assert sum(count for count, colour in colours if colour == (0, 0x72, 0xB2)) > 30
    curves.save_png(tmp_path / "curves.png")
    assert Image.open(tmp_path / "curves.png").size == Image.open(io.BytesIO(picture)).size


def test_missing_curves_and_folders(run: Path, tmp_path: Path) -> None:
    curves = minitx.curves(run)
    with pytest.raises(ValueError, match=r"no curve 'training/los'; did you mean training/loss\?"):
        curves["training/los"]
    with pytest.raises(ValueError, match=r"no curve like x\*; there are final/\*, heads_decoder/entropy/\*"):
        curves.of("x*")
    SummaryWriter(str(tmp_path / "silent")).close()
    for name, sentence in (("nowhere", "there is no run folder"), (".", "holds no curves"), ("silent", "no curves")):
        with pytest.raises(ValueError, match=sentence):
            minitx.curves(tmp_path / name)
    with (run / "events.out.tfevents.1.x").open("wb") as file:
        RecordWriter(file).write(b"\xff\xff\xff")
    with pytest.raises(ValueError, match="holds a damaged event file"):
        minitx.curves(run)
