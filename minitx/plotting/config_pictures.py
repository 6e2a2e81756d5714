"""What a config means before anything is trained, drawn: positions as the model is told them, and the learning rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from minitx.config.schema import Config
from minitx.interpret.position_signals import PositionSignal, position_signals
from minitx.plotting.panels import Heat, Lines, sheet
from minitx.training.optim import sampled
from minitx.training.resolve import ResolvedRun

LONGEST = 128
"""No more positions than this are drawn."""
POINTS = 200
"""Of the learning rate's curve."""
HEADS = 8
"""No more heads than this are drawn."""


def draw(run: ResolvedRun, path: Path) -> Path:
    """Draw a config's learning rate and the positions of its model, with the weights that training begins with.

    Returns:
        The path of the PNG file.
    """
    config, task, model = run.config, run.task, run.model
    length = min(LONGEST, max(2, *task.reach))
    panels: list[Heat | Lines] = [learning_rate(config)]
    for stack, signal in position_signals(model, length).items():
        panels += _panels(stack, signal)
    return sheet(path, f"{config.run.name}: {config.model.position['name']} positions, the first {length}", panels)


def learning_rate(config: Config) -> Lines:
    """The learning rate over the optimiser steps of the run."""
    curve = sampled(config.optimizer.schedule, config.trainer.max_steps, POINTS)
    rates = [config.optimizer.lr * ratio for _, ratio in curve]
    return Lines("learning rate", [done + 1 for done, _ in curve], [("", rates)], "optimiser step")


def _panels(stack: str, signal: PositionSignal) -> list[Heat | Lines]:
    panels: list[Heat | Lines] = []
    if signal.table is not None:
        values = signal.table.numpy()
        panels.append(Heat(f"{stack}: added to embeddings", values, "dimension", "position", "RdBu_r"))
    if signal.angles is not None:
        turned = (signal.angles % (2 * torch.pi)).numpy()
        panels.append(Heat(f"{stack}: angle, in radians", turned, "pair of dimensions", "position", "twilight"))
    if signal.similarity is not None:
        curve = ("", signal.similarity.tolist())
        panels.append(Lines(f"{stack}: what turning leaves of a product", range(len(curve[1])), [curve], "distance"))
    if signal.bias is not None:
        heads = signal.bias[:HEADS].numpy()
        seen = heads[np.isfinite(heads)]
        if not seen.any():
            return panels  # trained from zero: there is nothing to see yet
        panels += [Heat(f"{stack}: bias, head {n}", bias, "key", "query") for n, bias in enumerate(heads, start=1)]
    return panels
