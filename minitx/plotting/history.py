"""minitx.curves: the logged scalars of a run as numbers and plots: losses, accuracies, head statistics."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minitx.checkpoints.format import versions
from minitx.config.errors import ConfigError, did_you_mean
from minitx.plotting.panels import Lines, png, sheet

HEAD = re.compile(r"layer_(\d+)\.head_(\d+)")  # in heads_decoder/entropy/layer_1.head_2
Points = list[tuple[int, float]]  # optimizer steps, and the value after each


@dataclass(frozen=True)
class Curves:
    """The curves of a run by their names in TensorBoard; a notebook shows their plots.

    `curves["training/loss"]` is one of them, `curves.of("*heads_*/induction/*")` are those that match a pattern.
    """

    run: str
    points: Mapping[str, Points]

    def __getitem__(self, name: str) -> Points:
        """The points of one curve.

        Raises:
            ConfigError: no such curve.
        """
        if name not in self.points:
            raise ConfigError(f"{self.run} has no curve {name!r}; {did_you_mean(name, self.points)}")
        return self.points[name]

    def of(self, *patterns: str) -> "Curves":
        """The curves that match the patterns, in the order of the patterns: `*` matches anything, `?` one character.

        Raises:
            ConfigError: no curve matches.
        """
        names = [name for pattern in patterns for name in self.points if fnmatchcase(name, pattern)]
        if not names:
            known = ", ".join(sorted({name.rpartition("/")[0] + "/*" for name in self.points}))
            raise ConfigError(f"{self.run} has no curve like {' or '.join(patterns)}; there are {known}")
        return Curves(self.run, {name: self.points[name] for name in names})

    def save_image(self, path: str | Path) -> None:
        """Plot the curves to a PNG, PDF or SVG file.

        A panel has a measure of training and validation, or a statistic of all heads of one kind.

        Raises:
            ConfigError: another ending of the path.
        """
        sheet(Path(path), self._title, self._panels())

    save_png = save_image

    def _repr_png_(self) -> bytes:
        return png(self._title, self._panels())

    @property
    def _title(self) -> str:
        return "/".join(Path(self.run).parts[-2:])

    def _panels(self) -> list[Lines]:
        panels: dict[str, dict[str, Points]] = {}
        for name, points in self.points.items():
            folder, _, last = name.rpartition("/")
            title, label = (folder, HEAD.sub(r"\1.\2", last)) if "/" in folder else (last, folder)
            panels.setdefault(title, {})[label] = points
        return [_panel(title, curves) for title, curves in panels.items()]


def _panel(title: str, curves: Mapping[str, Points]) -> Lines:
    """Curves over the steps of all of them."""
    steps = sorted({step for points in curves.values() for step, _ in points})
    lines = [(label, [*map(dict(points).get, steps)]) for label, points in curves.items()]
    if "/" in title:
        return Lines(title, steps, lines, "optimizer step", "layer.head")
    return Lines(f"{lines[0][0]}/{title}" if len(lines) == 1 else title, steps, lines, "optimizer step")


def curves(path: str | Path) -> Curves:
    """Read the logged scalars of a run.

    Args:
        path: a run folder runs/NAME (its newest version with curves) or one version of it runs/NAME/vN.

    Raises:
        ConfigError: no such folder, nothing logged there, or a damaged event file.
    """
    path = Path(os.path.expanduser(path))
    if not path.is_dir():
        raise ConfigError(f"there is no run folder {path}")
    for folder in [*reversed(versions(path)), path]:
        if any(folder.glob("events.*")) and (points := _scalars(folder)):
            return Curves(str(folder), points)
    raise ConfigError(f"{path} holds no curves: no scalars are logged in it, nor in {path}/vN")


def _scalars(folder: Path) -> dict[str, Points]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 1, "images": 1})
    try:
        events.Reload()
    except DecodeError:
        raise ConfigError(f"{folder} holds a damaged event file") from None
    names = sorted(events.Tags()["scalars"], key=lambda name: name.count("/"))  # statistics of heads are the last
    # A run that was killed and resumed logged some steps twice: the later value belongs to the resumed run.
    return {name: sorted({e.step: e.value for e in events.Scalars(name)}.items()) for name in names}
