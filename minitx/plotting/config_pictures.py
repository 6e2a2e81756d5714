"""Plots of an untrained config: the signals of its position scheme, and the learning rate."""

from pathlib import Path

import torch

from minitx.interpret.position_signals import position_signals
from minitx.plotting.panels import Heat, Lines, sheet
from minitx.training.optim import schedule
from minitx.training.resolve import ResolvedRun

MAX_POSITIONS = 128
MAX_HEADS = 8
LEARNING_RATE_POINTS = 200


def draw(run: ResolvedRun, path: Path) -> Path:
    """Plot a config's learning rate and the positions of its initialized model; return the path, .png, .pdf or .svg."""
    config, task, model = run.config, run.task, run.model
    length = min(MAX_POSITIONS, max(2, *task.reach))
    max_steps, ratio = config.trainer.max_steps, schedule(config.optimizer.schedule, config.trainer.max_steps)
    steps = torch.linspace(0, max_steps - 1, min(LEARNING_RATE_POINTS, max_steps)).long().tolist()
    rates = [config.optimizer.lr * ratio(step) for step in steps]
    panels: list[Heat | Lines] = [Lines("learning rate", [step + 1 for step in steps], [("", rates)], "optimizer step")]
    for stack, signal in position_signals(model, length).items():
        if signal.table is not None:
            panels += [Heat(f"{stack}: added to embeddings", signal.table.numpy(), "dimension", "position", "RdBu_r")]
        if signal.angles is not None:
            angles = (signal.angles % (2 * torch.pi)).numpy()
            panels.append(Heat(f"{stack}: angle, in radians", angles, "pair of dimensions", "position", "twilight"))
        if signal.similarity is not None:
            curve = ("", signal.similarity.tolist())
            panels.append(Lines(f"{stack}: cosine after rotation", range(length), [curve], "distance"))
        biases = torch.zeros(0) if signal.bias is None else signal.bias[:MAX_HEADS]
        if biases[biases.isfinite()].any():  # a bias trained from zero shows nothing yet
            numbered = enumerate(biases.numpy(), start=1)
            panels += [Heat(f"{stack}: bias, head {number}", bias, "key", "query") for number, bias in numbered]
    return sheet(path, f"{config.run.name}: the first {length} positions" if panels[1:] else config.run.name, panels)
