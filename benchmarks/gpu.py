"""Measurements that need a GPU, in pieces: repeat the command until every piece is measured.

    python -m benchmarks.gpu [--minutes 10] [--nanogpt FOLDER] [--text FILE] [--multi30k FOLDER]

Each piece is kept in results/gpu/ and not measured again; remove its file to repeat it. A piece that does not fit into
the given minutes is left for the next call, which also resumes a training that was stopped by the limit. Without a
GPU the pieces run at a small size, as a test, and nothing is recorded. Races are those of benchmarks.training.
"""

import argparse
import functools
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import generation, peers
from benchmarks.common import RESULTS, machine, record, table
from benchmarks.peers import DEVICE, Missing, Size
from benchmarks.targets import TARGETS
from benchmarks.training import CUDA_GRAPHS, GPU_SIZES, Contestant, races, ratio, speed
from minitx.checkpoints import format as checkpoint
from minitx.evaluation.report import evaluation_report
from minitx.hardware.machine import finished_at
from minitx.inference.predictor import load

KEPT = RESULTS / "gpu"
RUNS = Path("runs/gpu")
GPU = DEVICE == "cuda"
SUITE = ("tests/nn", "tests/models", "tests/generation", "tests/training") if GPU else ("tests/nn/test_layers.py",)
BATCHES, TOKENS, ROUNDS = ((1, 64, 512), 128, 3) if GPU else ((1, 4), 8, 1)
LARGE, TINY = GPU_SIZES[0], Size("tiny decoder: 2 layers, d 64, 32 tokens x 64", 2, 64, 2, 32, 64, 16)
SMALL_LARGE = Size("small decoder: 2 layers, d 128, 128 tokens x 4", 2, 128, 4, 128, 4, 1000)
PEAKS = {
    "H200 NVL": 835e12, "H100 NVL": 835e12, "H100 PCIe": 756e12,
    "B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12,
}  # fmt: skip
"""Floating-point operations per second of dense bf16 products with fp32 sums, from the data sheets. The first that fits
counts."""


def step_flops(size: Size, parameters: int) -> int:
    """FLOPs of a decoder's forward and backward: 6 per weight and token, and those of attention's two products.

    The count of Chowdhery et al. 2022, appendix B, does not subtract masked products. The position table is excluded.
    """
    weights = parameters - size.length * size.d_model
    return size.tokens * (6 * weights + 12 * size.layers * size.d_model * size.length)


def peak() -> float:
    """Peak floating-point operations per second: of a known card, or measured with a large matrix product."""
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else ""
    for card, operations in PEAKS.items():
        if card in name:
            return operations
    width, times = (8192, 20) if DEVICE == "cuda" else (2048, 5)
    one = torch.randn(width, width, device=DEVICE, dtype=torch.bfloat16)
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        one @ one
        seconds.append(finished_at(DEVICE) - began)
    return 2 * width**3 / min(seconds)


def utilization(size: Size, nanogpt: str | None) -> dict[str, Any]:
    """minitx and nanoGPT, both compiled, in bf16; minitx alone where nanoGPT is not installed."""
    pair = {
        "minitx": Contestant(peers.minitx, size, bf16=True, mode="default"),
        "nanoGPT": Contestant(functools.partial(peers.nanogpt, folder=nanogpt), size, bf16=True, mode="default"),
    }
    missing = None
    try:
        found, parameters = races(pair)
    except Missing as reason:
        missing = str(reason)
        found, parameters = races({"minitx": pair["minitx"]})
    flops = step_flops(size, parameters["minitx"])
    about = {"size": asdict(size), "tokens": size.tokens, "flops": flops, "peak": peak()}
    return {**about, "races": found, "missing": missing}


def graphs(size: Size) -> dict[str, Any]:
    """The speed of minitx with CUDA graphs relative to that without."""
    found, _ = races(
        {
            "minitx": Contestant(peers.minitx, size, bf16=True, mode=CUDA_GRAPHS if GPU else None),
            "eager": Contestant(peers.minitx, size, bf16=True),
        }
    )
    return {"size": asdict(size), "ratio": ratio(found, "eager")}


LARGER = {
    "data.symbols": 100, "data.batch_size": 128, "model.d_model": 256, "model.n_layers": 4, "optimizer.lr": 1e-3,
    "trainer.max_steps": 5000, "trainer.val_every_n_steps": 5000,
}  # fmt: skip
STUDY: dict[str, tuple[str, str, tuple[int, int, int], str, dict[str, Any]]] = {
    "copy_100": ("copy_lengths", "larger", (1, 20, 40), "exact_match", LARGER),
    "reverse_100": ("reverse_lengths", "larger", (1, 20, 40), "exact_match", LARGER),
    "reverse_binary": ("reverse_binary_lengths", "longer", (1, 40, 100), "token_accuracy", {
        "data.batch_size": 128, "trainer.max_steps": 20_000, "trainer.val_every_n_steps": 5000,
    }),
}  # fmt: skip
"""Runs by name: config, its change in a word, shortest and longest question of training, longest of the test, metric,
settings."""


class Piece(NamedTuple):
    """One measurement."""

    minutes: float  # maximum on a large GPU
    measure: Callable[[Namespace, float], Any]  # from the arguments and the time.monotonic() at which to stop, to JSON
    rows: Callable[[Any], list[list[str]]]  # of the table: what was measured, the target, the figure


def suite(given: Namespace, until: float) -> dict[str, int]:
    """Counts of the tests of nn, models, generation and training, on the GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--device", DEVICE, *SUITE]
    last = subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines()[-1]
    return {outcome: int(count) for count, outcome in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}


def generating(given: Namespace, until: float) -> list[dict[str, Any]]:
    """Tokens per second of minitx, plain and compiled, relative to those of transformers, with GPT-2's parts."""
    writers = {"plain": generation.ours(1024), "compiled": generation.compiled(1024)}
    writers["transformers"] = generation.hugging_face(1024)
    rows = []
    for batch in BATCHES:
        speeds = {
            name: max(generation.speed(write, batch, 1, TOKENS) for _ in range(ROUNDS + 1))
            for name, write in writers.items()
        }
        theirs = speeds.pop("transformers")
        rows.append({"batch": batch, **{name: own / theirs for name, own in speeds.items()}})
    return rows


def train(run: Path, words: Sequence[str], until: float = float("inf"), kill: bool = False) -> dict[str, Any]:
    """Train a run, or resume it; its results.json with the seconds of this process.

    Args:
        run: its folder.
        words: arguments of `minitx train`.
        until: the time.monotonic() at which the run is asked to save and stop.
        kill: whether to kill the process after its first save.

    Raises:
        TimeoutError: the run was stopped, and is resumed by the next call.
    """
    folder = run / "v0"
    resumed = ["--resume"] if (folder / "last.ckpt").exists() else []
    fixed = ["--run.folder", str(run.parent), "--run.name", run.name, *([] if GPU else ["--trainer.accelerator=cpu"])]
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "minitx", "train", *words, *fixed, *resumed])
    while process.poll() is None:
        time.sleep(0.1)
        if kill and (folder / "last.ckpt").exists():
            process.kill()
            process.wait()
            return {}
        if time.monotonic() > until:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise TimeoutError
    if process.returncode:
        raise SystemExit(f"benchmarks.gpu: the run {run.name} ended with code {process.returncode}")
    return {**json.loads((folder / "results.json").read_text(encoding="utf-8")), "process": time.monotonic() - began}


def reversal(given: Namespace, until: float) -> dict[str, Any]:
    return train(given.runs / "reverse", ["--config", "reverse", *shortened()])


def resume(given: Namespace, until: float) -> float:
    """The largest difference between the weights of a run that was killed and resumed, and of one that was not."""
    steps = {"max_steps": 400, "save_every_n_steps": 100} if GPU else {"max_steps": 40, "save_every_n_steps": 10}
    words = ["--config", "reverse", *(word for key in steps for word in (f"--trainer.{key}", str(steps[key])))]
    runs = given.runs / "whole", given.runs / "killed"
    train(runs[0], words)
    train(runs[1], words, kill=True)
    train(runs[1], words)
    whole, killed = (checkpoint.weights(checkpoint.read(run / "v0/last.ckpt")) for run in runs)
    return max(float((whole[name].double() - killed[name].double()).abs().max()) for name in whole)


def shakespeare(given: Namespace, until: float) -> dict[str, Any] | None:
    if given.text is None:
        return None
    settings = next(target.overrides for target in TARGETS if target.name == "shakespeare-gpu") if GPU else ()
    words = ["--config", "shakespeare", "--data.path", given.text, *settings, *shortened()]
    return train(given.runs / "shakespeare", words, until)


def multi30k(given: Namespace, until: float) -> dict[str, Any] | None:
    if given.multi30k is None:
        return None
    words = ["--config", "multi30k_de_en", "--data.path", given.multi30k, *shortened()]
    return train(given.runs / "multi30k", words, until)


def lengths(given: Namespace, until: float) -> list[dict[str, Any]]:
    """Means over lengths, equally weighted, in training and beyond it: 100 symbols in a larger model, and binary."""
    rows = []
    for name, (config, change, (shortest, longest, beyond), metric, settings) in STUDY.items():
        words = [f"--{key}={value}" for key, value in settings.items()] if GPU else shortened()
        train(given.runs / name, ["--config", config, *words], until)
        report = evaluation_report(load(given.runs / name), lengths=f"{shortest}:{beyond}")
        figures = {int(length): row[metric] for length, row in report["by_length"].items()}
        means = [
            statistics.mean(value for length, value in figures.items() if first <= length <= last)
            for first, last in ((shortest, longest), (longest + 1, beyond))
        ]
        what = (
            f"`{config}`, {change}: {metric.replace('_', ' ')} at length {shortest}-{longest}; {longest + 1}-{beyond}"
        )
        rows.append({"name": what, "means": means})
    return rows


def shortened() -> list[str]:
    """Options that shorten a run to a test if there is no GPU."""
    small = ("--trainer.max_steps=20", "--trainer.val_every_n_steps=20", "--data.test_size=100")
    return [] if GPU else [*small]


def large_rows(large: dict[str, Any]) -> list[list[str]]:
    step, name = large["tokens"] / speed(large["races"], "minitx", large["tokens"]), large["size"]["name"]
    used = f"{large['flops'] / step / large['peak']:.1%} of {large['peak'] / 1e12:,.1f} TFLOP/s; {1e3 * step:,.1f} ms"
    peer = large["missing"] or f"{ratio(large['races'], 'nanoGPT'):.2f}x"
    return [
        [f"{name}: model FLOPs utilization, bf16, compiled", "50 %", f"{used} per step"],
        ["the same, relative to compiled nanoGPT", "1.0x", peer],
    ]


def graph_rows(tiny: dict[str, Any]) -> list[list[str]]:
    about = f"{tiny['size']['name']}: speed with CUDA graphs relative to eager"
    return [[about, "5x", f"{tiny['ratio']:.2f}x"]]


def run_row(what: str, target: str, figure: str, absent: str = "") -> Callable[[Any], list[list[str]]]:
    """The row of a run; figure is a format of its results."""
    return lambda found: [[what, target, absent if found is None else figure.format(**found)]]


PIECES = {
    "suite": Piece(4, suite, lambda found: [["tests of nn, models, generation and training", "0 failed", f"{found}"]]),
    "reversal": Piece(1, reversal, run_row("reversal", "100 % in 10 s", "{exact_match:.2%} in {seconds:.1f} s")),
    "resume": Piece(2, resume, lambda found: [["weights of a resumed run", "equal", f"differ by {found:g}"]]),
    "graphs": Piece(2, lambda given, until: graphs(TINY), graph_rows),
    "large": Piece(4, lambda given, until: utilization(LARGE if GPU else SMALL_LARGE, given.nanogpt), large_rows),
    "generation": Piece(2, generating, lambda found: [
        [
            f"generation, batch {row['batch']}, plain and compiled, relative to transformers", "3x",
            f"{row['plain']:.2f}x and {row['compiled']:.2f}x",
        ]
        for row in found
    ]),
    "lengths": Piece(1, lengths, lambda found: [
        [row["name"], "-", "; ".join(f"{mean:.1%}" for mean in row["means"])] for row in found
    ]),
    "shakespeare": Piece(1, shakespeare, run_row(
        "Shakespeare at nanoGPT's GPU size, nats per character", "1.45", "{loss:.3f} in {seconds:.0f} s", "no --text"
    )),
    "multi30k": Piece(1, multi30k, run_row(
        "Multi30k, German to English, lower-cased BLEU", "38", "{bleu_lowercase:.1f} in {seconds:.0f} s",
        "no --multi30k",
    )),
}  # fmt: skip
"""In this order. The last three are resumed, so that a minute is enough to continue."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0, help="stop before; call again for the other pieces")
    parser.add_argument("--nanogpt", default=None, help="a clone of karpathy/nanoGPT")
    parser.add_argument("--text", default=None, help="the text of Shakespeare, see data/README.md")
    parser.add_argument("--multi30k", default=None, help="the folder of Multi30k, see data/README.md")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as scratch:
        runs = RUNS if GPU else Path(scratch)
        found = [measured for name in PIECES if (measured := piece(name, given, until, runs)) is not None]
    if GPU:
        record("gpu", found, summary(found), "performance.md")
    else:
        print(summary(found))
        print("\nNo GPU: small sizes, no CUDA graphs, and nothing is recorded.")
    if left := PIECES.keys() - {measured["name"] for measured in found}:
        raise SystemExit(f"left for another call: {', '.join(name for name in PIECES if name in left)}")


def summary(found: list[dict[str, Any]]) -> str:
    """The table."""
    rows = [
        [*row, measured["machine"]["device"]]
        for measured in found
        for row in PIECES[measured["name"]].rows(measured["found"])
    ]
    return table(["", "target", "measured", "on"], rows)


def piece(name: str, given: Namespace, until: float, runs: Path) -> dict[str, Any] | None:
    """The measurements of a piece, new or kept, with their machine; None if the time does not suffice.

    Its runs are removed once it is measured, so that a repetition trains them again.
    """
    file = KEPT / f"{name}.json"
    if GPU and file.exists():
        return dict(json.loads(file.read_text(encoding="utf-8")))
    if time.monotonic() + 60 * PIECES[name].minutes > until:
        return None
    print(f"{name} ...", flush=True)
    began, given.runs = time.monotonic(), runs / name
    try:
        measured = PIECES[name].measure(given, until - 20)  # a run needs some seconds to save
        result = {"name": name, "machine": machine(), "found": measured}
    except TimeoutError:
        return None
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    if GPU and measured is not None:
        KEPT.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(given.runs, ignore_errors=True)
    return result


if __name__ == "__main__":
    main()
