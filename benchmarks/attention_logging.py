"""What looking inside costs: time that attention logging adds to training, bytes of each log, memory after many.

    python -m benchmarks.attention_logging

Each run is a process of its own, on one thread, and counts processor seconds, which a busy machine changes little:
those within the logging callback, until all is written, beside those of the rest. Pairs of runs with logging and
without, in turn, are the check on that; they differ by more than logging costs.
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
    "reverse": ("`configs/reverse.yaml`, the whole run", 2, ("--config", "configs/reverse.yaml", *SHORT)),
    "language_model": (
        "a language model of 10.7 million parameters, 200 steps of 8 x 256 characters",
        0,
        (
            *("--config", "configs/python_code.yaml", "--model.d_model", "384", "--model.n_layers", "6"),
            *("--model.n_heads", "6", "--data.block", "256", "--data.batch_size", "8", "--data.validation_size", "100"),
            *("--trainer.max_steps", "200", "--trainer.val_every_n_steps", "200"),
        ),
    ),
}
"""What is trained, how many pairs of runs, and its config."""
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

    found: dict[str, Any] = {"logs": 0, "logging": 0.0, "memory": {}}

    class Watched(callbacks.LookInside):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            found["cpu"] = -time.process_time()

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            trainer.logger.experiment.flush()  # what others have written is not ours
            found["logging"] -= time.process_time()
            super().on_validation_end(trainer, module)
            trainer.logger.experiment.flush()
            found["logging"] += time.process_time()
            found["logs"] += 1
            found["memory"][found["logs"]] = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

        def on_train_end(self, trainer: Any, module: Any) -> None:
            found["logging"] -= time.process_time()
            super().on_train_end(trainer, module)
            trainer.logger.experiment.flush()
            found["logging"] += time.process_time()
            found["cpu"] += time.process_time()

    callbacks.LookInside = Watched  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        parser = config_parser()
        off = [] if logged else ["--log.attention.every_n_validations", "0"]
        train(to_config(parser, parser.parse_args([*words, *off, "--run.folder", folder])))
        found["bytes"] = sum(file.stat().st_size for file in Path(folder).rglob("events.*"))
    return found


def alone(words: tuple[str, ...], logged: bool) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.attention_logging", "on" if logged else "off", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def compared(name: str) -> dict[str, Any]:
    """Runs with logging, and beside each one without."""
    what, pairs, words = RUNS[name]
    runs = [(alone(words, True), alone(words, False) if pairs else None) for _ in range(pairs or 1)]
    ratios = [on["cpu"] / off["cpu"] - 1 for on, off in runs if off]
    return {
        "run": what,
        "logs": runs[0][0]["logs"],
        "share": round(median(on["logging"] / (on["cpu"] - on["logging"]) for on, _ in runs), 4),
        "pairs": [round(ratio, 4) for ratio in ratios],
        "milliseconds_per_log": round(1e3 * median(on["logging"] / on["logs"] for on, _ in runs), 1),
        "bytes_of_events": runs[0][0]["bytes"],
        "processor_seconds": round(median(on["cpu"] for on, _ in runs), 1),
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
        ["trained", "logs", "added by logging", "a log takes", "the event file", "pairs with and without"],
        [
            [
                row["run"],
                row["logs"],
                f"{100 * row['share']:.2f} %",
                f"{row['milliseconds_per_log']:.0f} ms",
                f"{row['bytes_of_events'] / 2**10:.0f} KiB",
                ", ".join(f"{100 * ratio:+.1f} %" for ratio in row["pairs"]) or "not run",
            ]
            for row in rows
        ],
    )
    told = " and ".join(f"{megabytes:.0f} MiB after {count}" for count, megabytes in memory.items())
    text += f"\n\nResident memory while reversal logs after every step: {told} logs."
    record("attention_logging", [*rows, {"memory": memory}], text, "look_inside.md")


if __name__ == "__main__":
    main()
