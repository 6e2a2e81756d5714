"""Training steps per second: minitx beside nanoGPT, Hugging Face, x-transformers and torch.nn on the same sizes.

    python -m benchmarks.training --nanogpt FOLDER [--compile]

A step is forward, loss, backward, clipping to norm 1 and fused AdamW, on random tokens, for each contestant the same
loop. All take their steps in turn, so that all meet the same machine; a ratio is the median over rounds.

Those tables have everybody in one process and in both precisions. What each does by itself is more than that: minitx
keeps freed memory while it trains, which is a setting of a whole process. So it and nanoGPT then take turns once more,
each in a process of its own and in its own default precision.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks import peers
from benchmarks.common import record, table
from benchmarks.peers import DEVICE, Missing, Peer, Size
from minitx.training.allocation import kept_memory
from minitx.training.precision import resolve_precision

CPU_SIZES = (
    Size("10.6M decoder: 6 layers, d 384, 256 tokens x 8", 6, 384, 6, 256, 8, 65),
    Size("0.8M decoder: 4 layers, d 128, 64 tokens x 12", 4, 128, 4, 64, 12, 65),
    Size("encoder-decoder: 3 + 3 layers, d 256, 64 tokens x 32", 3, 256, 8, 64, 32, 4000, encoder=True),
)
GPU_SIZES = (
    Size("124M decoder: 12 layers, d 768, 1,024 tokens x 16", 12, 768, 12, 1024, 16, 50304),
    *CPU_SIZES,
)
ROUNDS, WARM_UP = 12, 3
SECONDS = 0.3
"""A round of one contestant takes at least so long."""


def stepper(peer: Peer, ids: tuple[torch.Tensor, ...], bf16: bool, compiled: bool) -> Callable[[], None]:
    """One training step."""
    model, loss = peer
    if compiled:
        loss = torch.compile(loss)
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
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def race(contestants: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Seconds of a step of each contestant in each round."""
    counts = {}
    for who, step in contestants.items():
        for _ in range(WARM_UP):
            step()
        counts[who] = max(1, round(SECONDS / timed(step, 1)))
    found: dict[str, list[float]] = {who: [] for who in contestants}
    for _ in range(ROUNDS):
        for who, step in contestants.items():
            found[who].append(timed(step, counts[who]))
    return found


def measure(size: Size, nanogpt: str | None, compiled: bool) -> dict[str, Any]:
    """All contestants at one size: nanoGPT and minitx in their own default precision, and everybody in both."""
    makers: dict[str, Callable[[Size], Peer]] = {
        "minitx": peers.minitx,
        "nanoGPT": functools.partial(peers.nanogpt, folder=nanogpt),
        "Hugging Face": peers.hugging_face,
        "x-transformers": peers.x_transformers,
        "torch.nn": peers.torch_nn,
    }
    torch.manual_seed(1)
    ids = size.ids()
    contestants, parameters, missing = {}, {}, {}
    for who, make in makers.items():
        try:
            for precision in ("bf16", "fp32"):
                peer = make(size)
                parameters[who] = sum(parameter.numel() for parameter in peer[0].parameters())
                contestants[f"{who} {precision}"] = stepper(peer, ids, precision == "bf16", compiled)
        except Missing as reason:
            missing[who] = str(reason)
    seconds = race(contestants)
    may_race = "nanoGPT" not in missing and DEVICE == "cpu" and not compiled
    return {
        "apart": race_apart(size, nanogpt) if may_race else None,
        "size": size.name,
        "compiled": compiled,
        "tokens": size.tokens,
        "seconds": seconds,
        "parameters": parameters,
        "missing": missing,
    }


def default_precision() -> str:
    """Of minitx, on this machine."""
    return "bf16" if resolve_precision("auto", "auto") == "bf16-mixed" else "fp32"


def apart(who: str, size: Size, nanogpt: str | None, turns: Connection) -> None:
    """A contestant in a process of its own, as it trains by itself: a round whenever it is asked for one."""
    torch.manual_seed(1)
    ids = size.ids()
    if who == "minitx":
        with kept_memory():
            rounds(stepper(peers.minitx(size), ids, default_precision() == "bf16", False), turns)
    else:
        rounds(stepper(peers.nanogpt(size, nanogpt), ids, False, False), turns)


def rounds(step: Callable[[], None], turns: Connection) -> None:
    """Answer every request for a round by the seconds of a step in it, until there are no more."""
    for _ in range(WARM_UP):
        step()
    count = max(1, round(SECONDS / timed(step, 1)))
    turns.send(count)
    while turns.recv():
        turns.send(timed(step, count))


def race_apart(size: Size, nanogpt: str | None) -> dict[str, list[float]]:
    """Seconds of a step of minitx and nanoGPT in each round, both as they are by themselves."""
    spawn = multiprocessing.get_context("spawn")
    turns = {}
    for who in ("minitx", "nanoGPT"):
        turns[who], theirs = spawn.Pipe()
        spawn.Process(target=apart, args=(who, size, nanogpt, theirs), daemon=True).start()
        turns[who].recv()  # it is ready: the next one may begin
    found: dict[str, list[float]] = {who: [] for who in turns}
    for _ in range(ROUNDS):
        for who, own in turns.items():
            own.send(True)
            found[who].append(own.recv())
    for own in turns.values():
        own.send(False)
    return found


def ratio(seconds: dict[str, list[float]], ours: str, theirs: str) -> float:
    """How many times as fast as theirs ours is: the median over rounds."""
    pairs = zip(seconds[theirs], seconds[ours], strict=True)
    return statistics.median(their / our for their, our in pairs)


def told(rows: list[dict[str, Any]]) -> str:
    """The tables."""
    parts = []
    for row in rows:
        lines = []
        for who, parameters in row["parameters"].items():
            cells = [who, f"{parameters / 1e6:.2f}M"]
            for precision in ("bf16", "fp32"):
                own, mine = f"{who} {precision}", f"minitx {precision}"
                speed = row["tokens"] / statistics.median(row["seconds"][own])
                cells += [f"{speed:,.0f}", f"{ratio(row['seconds'], mine, own):.2f}x" if who != "minitx" else ""]
            lines.append(cells)
        lines += [[who, reason, "", "", "", ""] for who, reason in row["missing"].items()]
        header = ["", "parameters", "tokens/s, bf16 autocast", "minitx over it", "tokens/s, fp32", "minitx over it"]
        title = f"**{row['size']}{', compiled' if row['compiled'] else ''}**"
        parts.append(f"{title}\n\n{table(header, lines)}")
        if row["apart"]:
            speeds = {who: row["tokens"] / statistics.median(seconds) for who, seconds in row["apart"].items()}
            parts.append(
                f"Each as it is by itself, minitx in {default_precision()} and keeping its memory, nanoGPT in fp32: "
                f"{speeds['minitx']:,.0f} and {speeds['nanoGPT']:,.0f} tokens/s, "
                f"{ratio(row['apart'], 'minitx', 'nanoGPT'):.2f}x."
            )
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", default=None, help="a clone of karpathy/nanoGPT")
    parser.add_argument(
        "--compile", action="store_true", help="let torch.compile write everybody's step at the first size too"
    )
    given = parser.parse_args()
    sizes = GPU_SIZES if DEVICE == "cuda" else CPU_SIZES
    rows = []
    for size, compiled in [*((size, False) for size in sizes), *([(sizes[0], True)] if given.compile else [])]:
        rows.append(measure(size, given.nanogpt, compiled))
        print(told(rows[-1:]), flush=True)
    record("training", rows, told(rows), "performance.md")


if __name__ == "__main__":
    main()
