"""`trainer.precision: auto` on a CPU: fp32 or bf16, and the attention kernel of bf16, whichever is the fastest here.

A processor's flags do not decide it: with the same flag bf16 is four times as fast on one machine, slower on another.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from minitx.config.schema import Config
from minitx.data.batch import Batch
from minitx.data.tasks.base import Task, generator
from minitx.hardware.devices import resolve_precision, training_device
from minitx.hardware.races import Seconds, decide, race
from minitx.models.builder import build_model
from minitx.nn import kernels
from minitx.training.losses import summed_loss
from minitx.training.resolve import ResolvedRun

FP32, BF16 = "32-true", "bf16-mixed"
RACE_EXAMPLES = 1024
"""Maximum number of examples in the batch of a race: more take longer and give the same ratio."""


class Numerics(NamedTuple):
    """How a run computes, under the same names as in its checkpoints."""

    precision: str
    """Lightning's name."""
    attention_kernel: str = kernels.CPU_HALF_KERNELS[0]
    """Kernel of attention in half precision on a CPU."""


def choose_numerics(run: ResolvedRun) -> tuple[Numerics, str]:
    """Choose how to train; also, in words, the measurement that the choice is based on.

    A resumed run computes as its checkpoint does. One of several processes uses the defaults.
    """
    settings, start = run.config.trainer, run.start
    auto, on_cpu = settings.precision == "auto", training_device(settings.accelerator) == "cpu"
    resolved = Numerics(resolve_precision(settings.precision, settings.accelerator))
    if start is not None and start.resumes and settings.precision == start.config.trainer.precision:
        saved = {name: start.contents[name] for name in Numerics._fields if name in start.contents}
        found = resolved._replace(**saved)  # maybe of another device
        return found._replace(precision=resolve_precision(found.precision, settings.accelerator)), ""
    several = "WORLD_SIZE" in os.environ or settings.num_nodes > 1 or str(settings.devices) not in ("1", "auto")
    if several or not on_cpu or not (auto or resolved.precision in (BF16, "bf16-true")):
        return resolved, ""
    precision = BF16 if auto else resolved.precision
    candidates = {f"bf16 with {kernel} attention": Numerics(precision, kernel) for kernel in kernels.CPU_HALF_KERNELS}
    if auto:
        candidates = {"fp32": resolved} | candidates
    subject = [run.config.to_dict()["model"], run.config.data]
    chosen, seconds = decide(subject, [*candidates], lambda: measure(run, candidates))
    default, *others = candidates
    other = chosen if chosen != default else min(others, key=seconds.__getitem__)
    ratio = seconds[default] / seconds[other]
    return candidates[chosen], f" ({other} trains at {ratio:.2f}x the speed of {default} here)"


def measure(run: ResolvedRun, candidates: dict[str, Numerics]) -> Seconds:
    """Race forward and backward of one layer of each stack on a batch of the task."""
    config = run.config.model
    with torch.random.fork_rng(devices=[]):
        model = build_model(replace(config, n_layers=1, n_decoder_layers=1 if config.n_decoder_layers else None))
        batch = first_batch(run.config, run.task).slice(0, RACE_EXAMPLES)

        def step(numerics: Numerics) -> None:
            model.zero_grad()
            mixed = torch.autocast("cpu", torch.bfloat16, enabled=numerics.precision != FP32)
            with training_kernel(numerics.attention_kernel), mixed:
                loss = summed_loss(model, batch)
            loss.backward()

        return race({name: partial(step, numerics) for name, numerics in candidates.items()})


def first_batch(config: Config, task: Task) -> Batch:
    """A batch of the task, without data.stages."""
    examples = task.batch(generator(config.run.seed, 0, 0), task.batch_size)
    return examples.frame(config.model.architecture, task.vocabulary.special)


@contextmanager
def training_kernel(name: str) -> Iterator[None]:
    """Train in half precision on a CPU with one of CPU_HALF_KERNELS, within a `with` block."""
    before, kernels.training_kernel = kernels.training_kernel, name
    try:
        yield
    finally:
        kernels.training_kernel = before
