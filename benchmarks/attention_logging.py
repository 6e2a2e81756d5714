"""The cost of attention logging: time added to training, bytes of each log, memory after many.

    python -m benchmarks.attention_logging

Each run is a separate process with one thread. Processor seconds, which a busy machine changes little, are counted in
the callback that logs maps, until all is written, and in the rest of the run. As a check, pairs of runs with and
without logging take turns; the variation between runs is larger than the cost of logging.
"""

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

REVERSE = "--config configs/reverse.yaml --data.test_size 10"
LANGUAGE_MODEL = (
    "--config configs/python_code.yaml --model.d_model 384 --model.n_layers 6 --model.n_heads 6 --data.block 256 "
    "--data.batch_size 8 --data.validation_size 10 --trainer.max_steps 40 --trainer.val_every_n_steps 40"
)  # more logs than by default, for the measurement
RUNS: dict[str, tuple[str, int, int, str]] = {
    "reverse": ("`configs/reverse.yaml`, the whole run", 2, 30, REVERSE),
    "language_model": (
        "a language model of 10.7 million parameters, 8 x 256 characters a step", 0, 60, LANGUAGE_MODEL
    ),
}  # fmt: skip
"""Name, number of pairs of runs, default steps between logs, and options."""
MANY = (
    f"{REVERSE} --data.validation_size 10 --trainer.save_every_n_steps 500 --trainer.max_steps 500 "
    "--log.attention.every_n_steps 1"
)
"""A log after each of 500 steps."""
LOGS = (50, 500)


def run(words: list[str], logged: bool) -> dict[str, Any]:
    """Train in this process, and measure time and memory."""
    from minitx.cli.config_parser import Parser
    from minitx.training import api
    from minitx.training.callbacks import log_attention as callbacks

    found: dict[str, Any] = {"logs": 0, "logging": 0.0, "memory": {}}

    class Watched(callbacks.LogAttention):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            found["cpu"] = -time.process_time()
            super().on_train_start(trainer, module)

        def _log_maps(self, trainer: Any, module: Any) -> None:
            trainer.logger.experiment.flush()  # events written by others are not counted
            found["logging"] -= time.process_time()
            super()._log_maps(trainer, module)
            trainer.logger.experiment.flush()
            found["logging"] += time.process_time()
            found["logs"] += 1
            found["memory"][found["logs"]] = (
                int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096 / 2**20
            )

        def on_train_end(self, trainer: Any, module: Any) -> None:
            found["logging"] -= time.process_time()
            super().on_train_end(trainer, module)
            trainer.logger.experiment.flush()
            found["logging"] += time.process_time()
            found["cpu"] += time.process_time()

    callbacks.LogAttention = Watched  # type: ignore[misc]
    after: Any = api
    after.evaluation_report, after.table = lambda predictor: {}, str  # evaluation after training is not measured
    with tempfile.TemporaryDirectory() as folder:
        off = [] if logged else ["--log.attention.every_n_validations", "0"]
        values = Parser(configured=True).parse_args([*words, *off, "--run.folder", folder]).values
        found["steps"] = api.train_config(values)["steps"]
        found["bytes"] = sum(file.stat().st_size for file in Path(folder).rglob("events.*"))
    return found


def alone(options: str, logged: bool) -> dict[str, Any]:
    """The same in a separate process."""
    command = [sys.executable, "-m", "benchmarks.attention_logging", "on" if logged else "off", *options.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def compared(name: str) -> dict[str, Any]:
    """Pairs of runs, with and without logging."""
    what, pairs, interval, options = RUNS[name]
    runs = [(alone(options, True), alone(options, False) if pairs else None) for _ in range(pairs or 1)]
    ratios = [on["cpu"] / off["cpu"] - 1 for on, off in runs if off]
    return {
        "run": what,
        "logs": runs[0][0]["logs"],
        "steps_per_log": interval,
        "share": round(median(_share(on, interval) for on, _ in runs), 4),
        "pairs": [round(ratio, 4) for ratio in ratios],
        "milliseconds_per_log": round(1e3 * median(on["logging"] / on["logs"] for on, _ in runs), 1),
        "bytes_of_events": runs[0][0]["bytes"],
        "milliseconds_per_step": round(1e3 * median(_step(on) for on, _ in runs), 1),
    }


def _step(on: dict[str, Any]) -> float:
    """Processor seconds of a step, with its share of the validations."""
    return float((on["cpu"] - on["logging"]) / on["steps"])


def _share(on: dict[str, Any], interval: int) -> float:
    """The time of a log as a share of the steps until the next."""
    return float(on["logging"] / on["logs"] / (interval * _step(on)))


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
        [
            "trained",
            "a step",
            "a log",
            "steps between logs",
            "added by logging",
            "pairs of runs, with and without logging",
        ],
        [
            [
                row["run"],
                f"{row['milliseconds_per_step']:.0f} ms",
                f"{row['milliseconds_per_log']:.0f} ms",
                row["steps_per_log"],
                f"{100 * row['share']:.2f} %",
                ", ".join(f"{100 * ratio:+.1f} %" for ratio in row["pairs"]) or "not run",
            ]
            for row in rows
        ],
    )
    size = rows[0]["bytes_of_events"] / rows[0]["logs"] / 2**10
    sizes = " and ".join(f"{megabytes:.0f} MiB after {count}" for count, megabytes in memory.items())
    text += f"\n\nReversal writes {size:.0f} KiB of events per log, including curves and images."
    text += f"\nResident memory when logging after every step: {sizes} logs."
    record("attention_logging", [*rows, {"memory": memory}], text, "look_inside.md")


if __name__ == "__main__":
    main()
