"""What a config means before anything is trained: size, cost, learning rate."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from minitx.config import Config
from minitx.data.framing import IGNORE, Batch, frame
from minitx.data.tasks import generator
from minitx.training.losses import cross_entropy
from minitx.training.optim import schedule
from minitx.training.run import prepare

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 60


def describe(config: Config) -> str:
    """Parameters by part, FLOPs and tokens of a step, and the learning-rate curve, as text."""
    config, task, model = prepare(config)
    batch = frame(
        task.batch(generator(config.run.seed, 0, 0), task.batch_size),
        config.model.architecture,
        task.vocabulary.special,
    )
    times = config.trainer.accumulate_grad_batches
    tokens = int((batch.labels != IGNORE).sum()) * times
    flops = step_flops(model, batch) * times
    total = sum(parameter.numel() for parameter in model.parameters())
    lines = [
        f"{config.run.name}: {config.model.architecture} on {config.data['name']}",
        "",
        f"parameters {total:,}",
    ]
    lines += [f"  {name:<32} {count:>12,}" for name, count in parts(model)]
    lines += [
        "",
        f"a step of {task.batch_size * times} examples: about {tokens:,} predicted tokens, {flops / 1e9:.3g} GFLOP "
        "(forward and backward)",
        f"{config.trainer.max_steps:,} steps: {flops * config.trainer.max_steps / 1e12:.3g} TFLOP",
        "",
        *learning_rate_curve(config),
    ]
    return "\n".join(lines)


def parts(model: nn.Module) -> list[tuple[str, int]]:
    """Parameters of each part down to the layers, a shared table counted where it stands first."""
    seen: set[int] = set()
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        pieces = name.split(".")
        depth = 3 if "layers" in pieces else 2 if len(pieces) > 2 else 1
        part = ".".join(pieces[:depth])
        counts[part] = counts.get(part, 0) + parameter.numel()
    return list(counts.items())


def step_flops(model: nn.Module, batch: Batch) -> int:
    """Floating-point operations of one forward and backward, counted by torch without computing anything."""
    shadow = copy.deepcopy(model).to("meta")
    inputs = [None if tensor is None else tensor.to("meta") for tensor in batch.inputs()]
    with FlopCounterMode(display=False) as counter:
        cross_entropy(shadow(*inputs), batch.labels.to("meta")).backward()
    return counter.get_total_flops()


def learning_rate_curve(config: Config) -> list[str]:
    """The learning rate over the run as a line of bars."""
    steps = config.trainer.max_steps
    ratio = schedule(config.optimizer.schedule, steps)
    places = torch.linspace(0, steps - 1, min(WIDTH, steps)).long().tolist()
    heights = [round(ratio(place) * (len(BARS) - 1)) for place in places]
    peak = config.optimizer.lr
    return [
        f"learning rate ({config.optimizer.schedule.name}, peak {peak:g})",
        f"  {''.join(BARS[max(0, min(height, len(BARS) - 1))] for height in heights)}",
        f"  step 1: {peak * ratio(0):.3g}{' ' * (len(places) - 24)}step {steps:,}: {peak * ratio(steps - 1):.3g}",
    ]
