"""Size, cost and learning rate of a config, without training it."""

import copy
from collections import Counter
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from minitx.config.errors import counted
from minitx.config.schema import Config
from minitx.data.batch import IGNORE, Batch
from minitx.data.tasks.base import Task, generator
from minitx.hardware.devices import MIXED_DTYPES, TRUE_DTYPES, training_device
from minitx.interpret.kernel_names import attention_kernels
from minitx.models.transformers import Transformer
from minitx.training.choices.numerics import choose_numerics, first_batch, training_kernel
from minitx.training.losses import cross_entropy
from minitx.training.optim import schedule
from minitx.training.resolve import ResolvedRun

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 60
SAMPLED_BATCHES = 200  # of which one is the typical one
KERNEL_EXAMPLES = 64
"""Examples of the forward that records the attention kernels, which depend on the lengths, not on this number."""


class Cost(NamedTuple):
    """Cost of a run, independent of its hardware."""

    parameters: int
    tokens: int  # predicted in one optimizer step, without data.stages
    flops: int  # of one optimizer step, forward and backward


def cost(config: Config, model: Transformer, batch: Batch) -> Cost:
    """The cost of a run, from its resolved config, its model and one batch; torch counts FLOPs on meta tensors."""
    batches, labels = config.trainer.accumulate_grad_batches, int((batch.labels != IGNORE).sum())
    meta, batch = copy.deepcopy(model).to("meta"), batch.to("meta")
    with FlopCounterMode(display=False) as counter:
        cross_entropy(meta(**batch.model_inputs()), batch.labels).backward()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Cost(parameters, labels * batches, counter.get_total_flops() * batches)


def typical_batch(config: Config, task: Task) -> Batch:
    """The first batch; if each has sentences of another length, the one nearest the mean number of predicted tokens."""
    if getattr(task, "buckets", 1) == 1:
        return first_batch(config, task)
    sampled = (task.batch(generator(step), task.batch_size) for step in range(SAMPLED_BATCHES))  # for any run.seed
    batches = [examples.frame(config.model.architecture, task.vocabulary.special) for examples in sampled]
    tokens = torch.tensor([int((batch.labels != IGNORE).sum()) for batch in batches]).float()
    return batches[int((tokens - tokens.mean()).abs().argmin())]


def describe(run: ResolvedRun) -> str:
    """Parameters by part, FLOPs and tokens of a step, attention kernels and the learning-rate curve, as text."""
    config, task, model = run.config, run.task, run.model
    batch = typical_batch(config, task)
    total, tokens, flops = cost(config, model, batch)
    examples = task.batch_size * config.trainer.accumulate_grad_batches
    lines = [
        f"{config.run.name}: {config.model.architecture} on {config.data['name']}",
        *task.notes,
        "",
        f"parameters {total:,}",
        *(f"  {name:<32} {count:>12,}" for name, count in parts(model)),
        "",
        f"a step of {counted(examples, 'example')}: about {tokens:,} predicted tokens, {flops / 1e9:.3g} "
        "GFLOP (forward and backward)",
        f"{config.trainer.max_steps:,} steps: {flops * config.trainer.max_steps / 1e12:.3g} TFLOP",
        "",
        *kernels(run, batch),
        "",
        *learning_rate_curve(config),
    ]
    return "\n".join(lines)


def parts(model: nn.Module) -> list[tuple[str, int]]:
    """Parameters of each part down to the layers, a shared table counted once."""
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        pieces = name.split(".")
        depth = 3 if "layers" in pieces else 2 if len(pieces) > 2 else 1
        counts[".".join(pieces[:depth])] += parameter.numel()
    return list(counts.items())


def kernels(run: ResolvedRun, batch: Batch) -> list[str]:
    """Attention kernels of training on this machine and in this precision, equal layers in one line."""
    device = training_device(run.config.trainer.accelerator)
    (precision, kernel), _ = choose_numerics(run)
    model = copy.deepcopy(run.model).to(device, TRUE_DTYPES.get(precision)).train()
    dtype = MIXED_DTYPES.get(precision)
    with training_kernel(kernel), torch.autocast(device, dtype, enabled=dtype is not None):
        names = attention_kernels(model, batch.slice(0, KERNEL_EXAMPLES).to(device).model_inputs())
    lines: dict[str, dict[str, None]] = {}
    for path, name in names.items():
        stack, _, kind = path.partition(".layers.")
        lines.setdefault(f"{stack} {kind.partition('.')[2]}", {})[name] = None
    found = [f"  {place:<32} {'; '.join(each)}" for place, each in lines.items()]
    return [f"attention ({device}, {precision})", *found]


def learning_rate_curve(config: Config) -> list[str]:
    """The learning rate over the run as a line of bars."""
    steps = config.trainer.max_steps
    shown = torch.linspace(0, steps - 1, min(WIDTH, steps)).long().tolist()
    curve = [*map(schedule(config.optimizer.schedule, steps), shown)]  # ratios to the peak
    bars = "".join(BARS[round(ratio * (len(BARS) - 1))] for ratio in curve)
    peak = config.optimizer.lr
    return [
        f"learning rate ({config.optimizer.schedule.name}, peak {peak:g})",
        f"  {bars}",
        f"  step 1: {peak * curve[0]:.3g}{' ' * max(2, len(curve) - 24)}step {steps:,}: {peak * curve[-1]:.3g}",
    ]
