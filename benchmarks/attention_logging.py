"""What looking inside costs: time that attention logging adds to training, bytes of each log, memory after many.

    python -m benchmarks.attention_logging

Each run is a process of its own, on one thread, with logging and without in turn; the median of the ratios of processor
seconds counts, so that a busy machine does not change it. Beside it, the share of a run that the callback takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import record, table

SHORT = ("--data.test_size", "10")
RUNS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "reverse": ("`configs/reverse.yaml`, the whole run", 5, ("--config", "configs/reverse.yaml", *SHORT)),
    "language_model": (
        "a language model of 10.7 million parameters, 400 steps of 8 x 256 characters",
        3,
        (
            *("--config", "configs/python_code.yaml", "--model.d_model", "384", "--model.n_layers", "6"),
            *("--model.n_heads", "6", "--data.block", "256", "--data.batch_size", "8"),
            *("--trainer.max_steps", "400", "--trainer.val_every_n_steps", "200"),
        ),
    ),
}
"""What is trained, how often, and its config."""
MANY = (
    *(
        "--config",
        "configs/reverse.yaml",
        *SHORT,
        "--data.validation_size",
        "10",
        "--trainer.save_every_n_steps",
        "500",
    ),
    *("--trainer.max_steps", "500", "--trainer.val_every_n_steps", "1"),
)
"""A log after each of 500 steps."""
LOGS = (50, 500)


def run(words: list[str], logged: bool) -> dict[str, Any]:
    """Train in this process, and look at the clock and at the memory beside it."""
    from minitx.options import config_parser, to_config
    from minitx.training import callbacks
    from minitx.training.run import train

    found: dict[str, Any] = {"logs": 0, "logging_seconds": 0.0, "memory": {}}

    class Watched(callbacks.LookInside):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            found["cpu"] = -time.process_time()

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            began = time.perf_counter()
            super().on_validation_end(trainer, module)
            found["logging_seconds"] += time.perf_counter() - began
            found["logs"] += 1
            found["memory"][found["logs"]] = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

        def on_train_end(self, trainer: Any, module: Any) -> None:
            began = time.perf_counter()
            super().on_train_end(trainer, module)
            found["logging_seconds"] += time.perf_counter() - began
            found["cpu"] += time.process_time()

    callbacks.LookInside = Watched  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        parser = config_parser()
        off = [] if logged else ["--log.attention.every_n_validations", "0"]
        results = train(to_config(parser, parser.parse_args([*words, *off, "--run.folder", folder])))
        found["bytes"] = sum(file.stat().st_size for file in Path(folder).rglob("events.*"))
    return {**found, "seconds": results["seconds"]}


def alone(words: tuple[str, ...], logged: bool) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.attention_logging", "on" if logged else "off", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def compared(name: str) -> dict[str, Any]:
    """A run with logging beside one without, several times."""
    what, rounds, words = RUNS[name]
    pairs = [(alone(words, True), alone(words, False)) for _ in range(rounds)]
    shares = [on["logging_seconds"] / (on["seconds"] - on["logging_seconds"]) for on, _ in pairs]
    on, off = pairs[0]
    return {
        "run": what,
        "rounds": rounds,
        "logs": on["logs"],
        "added_cpu": round(median(on["cpu"] / off["cpu"] - 1 for on, off in pairs), 4),
        "added_seconds": round(median(on["seconds"] / off["seconds"] - 1 for on, off in pairs), 4),
        "share_of_callback": round(median(shares), 4),
        "milliseconds_per_log": round(1e3 * median(on["logging_seconds"] / on["logs"] for on, _ in pairs), 1),
        "bytes_per_log": round((on["bytes"] - off["bytes"]) / on["logs"]),
        "seconds": round(median(on["seconds"] for on, _ in pairs), 1),
    }


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(run(sys.argv[2:], sys.argv[1] == "on")))
        return
    rows = []
    for name in RUNS:
        rows.append(compared(name))
        print(rows[-1], flush=True)
    many = alone(MANY, True)
    memory = {str(count): round(many["memory"][str(count)], 1) for count in LOGS}
    text = table(
        ["trained", "logs", "added processor time", "share of the callback", "a log takes", "a log writes"],
        [
            [
                row["run"],
                row["logs"],
                f"{100 * row['added_cpu']:.1f} %",
                f"{100 * row['share_of_callback']:.1f} %",
                f"{row['milliseconds_per_log']:.0f} ms",
                f"{row['bytes_per_log'] / 2**10:.0f} KiB",
            ]
            for row in rows
        ],
    )
    told = " and ".join(f"{megabytes:.0f} MiB after {count}" for count, megabytes in memory.items())
    text += f"\n\nResident memory while reversal logs after every step: {told} logs."
    record("attention_logging", [*rows, {"memory": memory}], text, "look_inside.md")


if __name__ == "__main__":
    main()
