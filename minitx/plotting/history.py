"""minitx.curves: what a run logged, as numbers and as pictures: losses, accuracies, what each head did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from minitx.checkpoints.atomic_files import written_whole
from minitx.checkpoints.format import versions
from minitx.config.errors import ConfigError, did_you_mean
from minitx.plotting.panels import Lines, png

Points = list[tuple[int, float]]
"""Optimiser steps, and the value after each."""


@dataclass(frozen=True)
class Curves:
    """The curves of a run, by the names that TensorBoard shows; in a notebook, they draw themselves.

    `curves["training/loss"]` is one of them, `curves.of("heads_*/induction/*")` those of a pattern.
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

    def of(self, *patterns: str) -> Curves:
        """The curves whose names match one of the patterns: `*` stands for anything, `?` for one letter.

        Raises:
            ConfigError: none does.
        """
        chosen = {
            name: points
            for name, points in self.points.items()
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        }
        if not chosen:
            known = ", ".join(sorted({name.rpartition("/")[0] + "/*" for name in self.points}))
            raise ConfigError(f"{self.run} has no curve like {' or '.join(patterns)}; there are {known}")
        return Curves(self.run, chosen)

    def save_png(self, path: str | Path) -> None:
        """Draw them: heads that were measured alike share a picture, every other curve has its own."""
        with written_whole(path) as file:
            file.write(self._repr_png_())

    def _repr_png_(self) -> bytes:
        return png(self.run, self._panels())

    def _panels(self) -> list[Lines]:
        """One for each curve; heads that were measured alike, at the same steps, share one."""
        # A figure that was logged once is no curve; in a run so short that all were, each is a point.
        drawn = {name: points for name, points in self.points.items() if len(points) > 1} or self.points
        pictures: dict[tuple[str, tuple[int, ...]], list[tuple[str, list[float]]]] = {}
        for name, points in drawn.items():
            measure, _, label = name.rpartition("/")
            title = measure if name.startswith("heads_") else name
            steps, values = zip(*points, strict=True)
            pictures.setdefault((title, steps), []).append((label, list(values)))
        return [Lines(title, steps, found, "optimiser step") for (title, steps), found in pictures.items()]


def curves(path: str | Path) -> Curves:
    """Read what a run logged.

    Args:
        path: a run folder runs/NAME (its newest version) or one version of it runs/NAME/vN.

    Raises:
        ConfigError: no such folder, or nothing logged there.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = Path(path)
    if not path.is_dir():
        raise ConfigError(f"there is no run folder {path}")
    folder = next((found for found in [*reversed(versions(path)), path] if any(found.glob("events.*"))), None)
    nothing = f"{path} holds no curves: no TensorBoard events lie there, nor in {path}/vN"
    if folder is None:
        raise ConfigError(nothing)
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 1, "images": 1})
    events.Reload()
    # A run that was killed and resumed logged some steps twice: the later ones are what it went on from.
    points = {
        name: sorted({e.step: e.value for e in events.Scalars(name)}.items()) for name in events.Tags()["scalars"]
    }
    if not points:
        raise ConfigError(nothing)
    return Curves(str(folder), points)
