"""`trainer.precision: auto` on a CPU: fp32 or bf16, whichever trains this model faster on this machine.

Flags of a processor do not tell: with the same flag bf16 is four times as fast on one machine and slower on another.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace

import torch

from minitx.checkpoints.atomic_files import written_whole
from minitx.config.errors import ConfigError
from minitx.data.text.token_cache import cache_folder
from minitx.hardware.devices import machine, resolve_precision, training_device
from minitx.models.builder import build_model
from minitx.training.losses import cross_entropy
from minitx.training.resolve import ResolvedRun, first_batch

FP32, BF16 = "32-true", "bf16-mixed"
MIN_GAIN = 1.05
"""How much faster bf16 must be to be chosen: less is within the noise, and fp32 is the more exact."""
MAX_SECONDS = 0.5
"""Of measuring, after a first turn of each."""
MIN_TURNS = 2

Clock = Callable[[], float]


def choose_precision(run: ResolvedRun, clock: Clock = time.perf_counter) -> tuple[str, str]:
    """Choose Lightning's name of the precision; also, in words, the measurement that it rests on.

    A resumed run keeps the precision of its checkpoint. Measurements are kept in the cache folder, one for each
    machine, model and batch.
    """
    settings, start = run.config.trainer, run.start
    if start is not None and start.resumes and settings.precision == start.config.trainer.precision == "auto":
        return start.contents.get("precision", resolve_precision("auto", settings.accelerator)), ""
    several = "WORLD_SIZE" in os.environ or settings.num_nodes > 1 or settings.devices not in (1, "auto")
    if settings.precision != "auto" or training_device(settings.accelerator) != "cpu" or several:
        return resolve_precision(settings.precision, settings.accelerator), ""
    ratio = _recorded_ratio(run, clock)
    chosen = BF16 if ratio >= MIN_GAIN else FP32
    return chosen, f" (bf16 trains at {ratio:.2f}x the speed of fp32 here)"


def _recorded_ratio(run: ResolvedRun, clock: Clock) -> float:
    """The speed of bf16 relative to fp32, measured once for this machine, model and batch."""
    hardware = machine()
    settings = [hardware["device"], hardware["torch"], run.config.to_dict()["model"], run.config.data]
    name = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:32]
    with suppress(OSError, ValueError, TypeError):
        return float(json.loads((cache_folder() / "precision" / f"{name}.json").read_bytes()))
    ratio = measured_ratio(run, clock)
    # Where it cannot be written, the next run measures again.
    with suppress(OSError, ConfigError), written_whole(cache_folder() / "precision" / f"{name}.json") as stream:
        stream.write(json.dumps(ratio).encode())
    return ratio


def measured_ratio(run: ResolvedRun, clock: Clock) -> float:
    """Race forward and backward of one layer of each stack on a batch of the task, in both precisions."""
    config = run.config.model
    with torch.random.fork_rng(devices=[]):
        model = build_model(replace(config, n_layers=1, n_decoder_layers=1 if config.n_decoder_layers else None))
        batch = first_batch(run.config, run.task)

        def step(precision: str) -> None:
            with torch.autocast("cpu", torch.bfloat16) if precision == BF16 else nullcontext():
                cross_entropy(model(**batch.model_inputs()), batch.labels).backward()

        seconds = race({FP32: lambda: step(FP32), BF16: lambda: step(BF16)}, clock)
    return seconds[FP32] / seconds[BF16]


def race(racers: Mapping[str, Callable[[], None]], clock: Clock) -> dict[str, float]:
    """The shortest duration of each, in seconds. They take turns, so that other programs disturb all of them."""
    best = dict.fromkeys(racers, float("inf"))
    for run in racers.values():
        run()
    turns, started = 0, clock()
    while turns < MIN_TURNS or clock() - started < MAX_SECONDS:
        for name, run in racers.items():
            before = clock()
            run()
            best[name] = min(best[name], clock() - before)
        turns += 1
    return best
