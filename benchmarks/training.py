"""Training steps per second: minitx against nanoGPT, Hugging Face, x-transformers and torch.nn on the same sizes.

    python -m benchmarks.training --nanogpt FOLDER [--compile]

A step is forward, loss, backward, clipping to norm 1 and fused AdamW, on random tokens, in the same loop for all.
minitx is compared with one peer in one precision at a time, each of the two in its own process. They take turns, so
that a slow phase of the machine affects both. The process that starts first is slower by up to a tenth, depending on
where its memory is allocated, so each race is run in both orders. A ratio is the median over the rounds of a race; the
ratio of two races is their geometric mean.

`minitx train` also reuses freed memory and selects its precision. So minitx with memory reuse and nanoGPT are compared
again: each in its default precision, and both in the same.
"""

import argparse
import contextlib
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch

from benchmarks import peers
from benchmarks.common import record, table
from benchmarks.peers import DEVICE, Missing, Peer, Size
from minitx.hardware.machine import finished_at
from minitx.hardware.memory import freed_memory_kept
from minitx.hardware.races import decide
from minitx.hardware.races import race as race_layers
from minitx.nn.kernels import CPU_HALF_KERNELS
from minitx.training.choices.cuda_graphs import LossGraphs
from minitx.training.choices.numerics import training_kernel

CPU_SIZES = (
    Size("10.6M decoder: 6 layers, d 384, 256 tokens x 8", 6, 384, 6, 256, 8, 65),
    Size("0.8M decoder: 4 layers, d 128, 64 tokens x 12", 4, 128, 4, 64, 12, 65),
    Size("encoder-decoder: 3 + 3 layers, d 256, 64 tokens x 32", 3, 256, 8, 64, 32, 4000, encoder=True),
)
GPU_SIZES = (
    Size("124M decoder: 12 layers, d 768, 1,024 tokens x 16", 12, 768, 12, 1024, 16, 50304),
    *CPU_SIZES,
)
ROUNDS, WARM_UP = 6, 3
PRECISIONS = ("bf16", "fp32")
SECONDS, STEPS = 0.3, 3
"""Minimum seconds and steps of a round: the first step after a wait is slow."""

CANDIDATES = ("fp32", *CPU_HALF_KERNELS)
"""How to train on a CPU: in fp32, or in bf16 with one of its attention kernels."""

CUDA_GRAPHS = "CUDA graphs"
"""As minitx trains small models on a GPU; in place of a mode of torch.compile."""


def stepper(peer: Peer, ids: tuple[torch.Tensor, ...], bf16: bool, mode: str | None) -> Callable[[], None]:
    """One training step; in a mode of torch.compile, with forward and backward as CUDA graphs, or eager."""
    model, loss = peer
    if mode == CUDA_GRAPHS:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16, cache_enabled=False):
            loss = LossGraphs(loss, [*model.parameters()], ids)
    elif mode is not None:
        loss = torch.compile(loss, mode=mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
            value = loss(*ids)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], None], steps: int) -> float:
    """Seconds of one step."""
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return (finished_at(DEVICE) - began) / steps


def choice(size: Size, candidates: Sequence[str] = CANDIDATES) -> str:
    """Choose a candidate as `minitx train` does before a run: by default of all, of the kernels if bf16 is set.

    It is chosen by forward and backward of one layer of each stack, measured now and in earlier calls.
    """
    model, loss = peers.minitx(replace(size, layers=1))
    ids = size.ids()

    def run(name: str) -> None:
        model.zero_grad()
        kernel = training_kernel(name) if name in CPU_HALF_KERNELS else contextlib.nullcontext()
        with kernel, torch.autocast("cpu", torch.bfloat16, enabled=name != "fp32"):
            value = loss(*ids)
        value.backward()

    racers = {name: functools.partial(run, name) for name in candidates}
    return decide(["benchmarks.training", asdict(size)], candidates, lambda: race_layers(racers))[0]


@dataclass(frozen=True)
class Contestant:
    """Takes steps in a separate process."""

    make: Callable[[Size], Peer]
    size: Size
    bf16: bool
    mode: str | None = None  # of torch.compile, or CUDA_GRAPHS
    keeps_memory: bool = False

    def run(self, turns: Connection) -> None:
        """Send the number of parameters once warm, or the missing peer; then the seconds per step of each round."""
        torch.manual_seed(1)
        try:
            peer = self.make(self.size)
        except Missing as reason:
            turns.send(str(reason))
            return
        ids, kernel = self.size.ids(), CPU_HALF_KERNELS[0]
        if self.make is peers.minitx and self.bf16 and DEVICE == "cpu":
            kernel = choice(self.size)
            kernel = choice(self.size, CPU_HALF_KERNELS) if kernel == "fp32" else kernel
        keeps = freed_memory_kept() if self.keeps_memory else contextlib.nullcontext()
        with keeps, training_kernel(kernel):
            step = stepper(peer, ids, self.bf16, self.mode)
            for _ in range(WARM_UP):
                step()
            count = max(STEPS, round(SECONDS / timed(step, 1)))
            turns.send(sum(parameter.numel() for parameter in peer[0].parameters()))
            while turns.recv():
                turns.send(timed(step, count))


Race = dict[str, list[float]]
"""Seconds per step of both contestants in each round."""


class Racer(Protocol):
    """A contestant that can run in a separate process."""

    def run(self, turns: Connection) -> None:
        """Send the number of parameters after the warm-up; then, for each True, the seconds per step."""


def races(pair: Mapping[str, Racer]) -> tuple[list[Race], dict[str, int]]:
    """One race for each order of start, and the number of parameters of each contestant.

    Raises:
        Missing: one of them is not installed or not given.
    """
    found = []
    for order in ([*pair], [*pair][::-1]):
        seconds, parameters = race({who: pair[who] for who in order})
        found.append(seconds)
    return found, parameters


def race(pair: Mapping[str, Racer]) -> tuple[Race, dict[str, int]]:
    """A race of two processes, started in this order."""
    spawn = multiprocessing.get_context("spawn")
    turns, processes, parameters = {}, [], {}
    for who, racer in pair.items():
        turns[who], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=racer.run, args=(theirs,), daemon=True))
        processes[-1].start()
        theirs.close()  # if the process dies, recv raises an error
        parameters[who] = turns[who].recv()  # warmed up: the next process may start
    try:
        for answer in parameters.values():
            if isinstance(answer, str):
                raise Missing(answer)
        seconds: Race = {who: [] for who in turns}
        for _ in range(ROUNDS):
            for who, own in turns.items():
                own.send(True)
                seconds[who].append(own.recv())
    finally:
        for own in turns.values():
            with contextlib.suppress(OSError):  # a process whose peer is missing has ended
                own.send(False)
        for process in processes:
            process.join()
    return seconds, parameters


def measure(size: Size, nanogpt: str | None, compiled: bool) -> dict[str, Any]:
    """minitx and each peer at one size, in both precisions; with nanoGPT also with memory reuse in minitx."""
    makers: dict[str, Callable[[Size], Peer]] = {
        "minitx": peers.minitx,
        "nanoGPT": functools.partial(peers.nanogpt, folder=nanogpt),
        "Hugging Face": peers.hugging_face,
        "x-transformers": peers.x_transformers,
        "torch.nn": peers.torch_nn,
    }
    mode = "default" if compiled else None
    duels: dict[str, dict[str, list[Race]]] = {}
    counts: dict[str, int] = {}
    missing: dict[str, str] = {}
    for peer in [*makers][1:]:
        try:
            duels[peer] = {}
            for precision in PRECISIONS:
                pair = {who: Contestant(makers[who], size, precision == "bf16", mode) for who in ("minitx", peer)}
                duels[peer][precision], found = races(pair)
                counts |= {who: found[who] for who in pair}
        except Missing as reason:
            missing[peer] = str(reason)
            del duels[peer]
    kept: list[dict[str, Any]] = []
    if "nanoGPT" in duels and DEVICE == "cpu" and not compiled:
        for ours, theirs in dict.fromkeys(
            [(default_precision(size), "fp32"), *zip(PRECISIONS, PRECISIONS, strict=True)]
        ):
            pair = {
                "minitx": Contestant(makers["minitx"], size, ours == "bf16", keeps_memory=True),
                "nanoGPT": Contestant(makers["nanoGPT"], size, theirs == "bf16"),
            }
            kept.append({"minitx": ours, "nanoGPT": theirs, "duel": races(pair)[0]})
    row = {"size": size.name, "compiled": compiled, "tokens": size.tokens, "parameters": counts}
    return {**row, "duels": duels, "missing": missing, "kept": kept}


def default_precision(size: Size) -> str:
    """The precision that minitx selects on this CPU."""
    return "fp32" if choice(size) == "fp32" else "bf16"


def ratio(found: list[Race], theirs: str) -> float:
    """The speed of minitx relative to a peer's."""
    medians = [
        statistics.median(their / our for their, our in zip(seconds[theirs], seconds["minitx"], strict=True))
        for seconds in found
    ]
    return statistics.geometric_mean(medians)


def speed(found: list[Race], who: str, tokens: int) -> float:
    """Tokens per second."""
    return tokens / statistics.median(each for seconds in found for each in seconds[who])


def cells(found: list[Race], theirs: str, tokens: int) -> list[str]:
    """Both speeds, and the speed of minitx relative to the peer's."""
    both = " / ".join(f"{speed(found, who, tokens):,.0f}" for who in (theirs, "minitx"))
    return [both, f"{ratio(found, theirs):.2f}x"]


def summary(rows: list[dict[str, Any]]) -> str:
    """The tables."""
    parts = []
    for row in rows:
        tokens, parameters = row["tokens"], row["parameters"]
        lines = [
            [
                who,
                f"{parameters[who] / 1e6:.2f}M",
                *(cell for found in duel.values() for cell in cells(found, who, tokens)),
            ]
            for who, duel in row["duels"].items()
        ]
        lines += [[who, reason, *[""] * 4] for who, reason in row["missing"].items()]
        header = ["", "parameters"]
        for precision in PRECISIONS:
            header += [f"tokens/s in {precision}, peer / minitx", "ratio"]
        title = f"**{row['size']}{', compiled' if row['compiled'] else ''}**"
        parts.append(f"{title}; minitx has {parameters['minitx'] / 1e6:.2f}M parameters\n\n{table(header, lines)}")
        if row["kept"]:
            header = ["minitx with memory reuse, in", "nanoGPT in", "tokens/s, nanoGPT / minitx", "ratio"]
            lines = [[each["minitx"], each["nanoGPT"], *cells(each["duel"], "nanoGPT", tokens)] for each in row["kept"]]
            parts.append(table(header, lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", default=None, help="a clone of karpathy/nanoGPT")
    parser.add_argument("--compile", action="store_true", help="at the first size, also compare compiled steps")
    given = parser.parse_args()
    sizes = GPU_SIZES if DEVICE == "cuda" else CPU_SIZES
    rows = []
    for size, compiled in [*((size, False) for size in sizes), *([(sizes[0], True)] if given.compile else [])]:
        rows.append(measure(size, given.nanogpt, compiled))
        print(summary(rows[-1:]), flush=True)
    record("training", rows, summary(rows), "performance.md")


if __name__ == "__main__":
    main()
