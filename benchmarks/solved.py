"""Steps until a toy task is solved: training that ends once two validations in a row are free of errors.

    python -m benchmarks.solved                    all configs, three seeds, then the table in docs/results.md
    python -m benchmarks.solved copy addition      these configs; the records of the others are kept

Each config with a moving average of its weights, which replaces the decay of its learning rate, and twenty validations
in its max_steps. Seconds are processor seconds, which a busy machine changes little.
"""

import argparse
import json
import time
from typing import Any

import torch

from benchmarks.common import RESULTS, machine, machines, table
from minitx.config import yaml_files
from minitx.sweeps.tables import shown
from minitx.training.api import train

CONFIGS = ("reverse_encoder", "copy", "addition", "associative_recall", "reverse", "sort", "dates", "induction")
SEEDS, VALIDATIONS = 3, 20
STOP = {
    "trainer.ema": 0.99,
    "trainer.stop_when.metric": "exact_match",
    "trainer.stop_when.at_least": 1.0,
    "trainer.stop_when.patience": 2,
    "log.attention.every_n_validations": 0,
}
FILE = RESULTS / "solved.json"


def run(name: str, seed: int) -> dict[str, Any]:
    steps = yaml_files.read(name)["trainer"]["max_steps"]
    own = {"run.folder": "runs/benchmark_solved", "run.seed": seed, "trainer.val_every_n_steps": steps // VALIDATIONS}
    began = time.process_time()
    found = train(name, STOP | own)
    kept = {key: found.get(key) for key in ("steps", "solved_at_step", "exact_match", "examples")}
    kept |= {"processor_seconds": round(time.process_time() - began, 1), "machine": machine()}
    return {"config": name, "seed": seed, "max_steps": steps, **kept}


def section() -> str:
    """The section of docs/results.md; empty before the first record."""
    if not FILE.exists():
        return ""
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    lines, done, whole = [], 0, 0
    for name in dict.fromkeys(row["config"] for row in rows):
        mine = [row for row in rows if row["config"] == name]
        done, whole = done + sum(row["steps"] for row in mine), whole + sum(row["max_steps"] for row in mine)
        solved = [f"{row['solved_at_step']:,}" if row["solved_at_step"] else "not solved" for row in mine]
        steps = [f"{row['steps']:,}" for row in mine]
        exact, seconds = (
            shown(key, [row[where] for row in mine])
            for key, where in (("exact_match", "exact_match"), ("seconds", "processor_seconds"))
        )
        lines.append([f"`{name}`", f"{mine[0]['max_steps']:,}", ", ".join(solved), ", ".join(steps), exact, seconds])
    own = [f"`{name}`" for name in CONFIGS if "stop_when" in yaml_files.read(name)["trainer"]]
    header = [
        "config",
        "max_steps",
        "solved at step",
        "stopped after step",
        "exact match, held out",
        "processor seconds",
    ]
    return "\n\n".join(
        [
            "## Stopped when solved",
            "Toy configs with `trainer.ema: 0.99`, `trainer.stop_when: {metric: exact_match, at_least: 1.0, "
            f"patience: 2}}` and {VALIDATIONS} validations in max_steps, for the seeds 1 to {SEEDS}; *solved at step* "
            "is the first of two validations in a row without an error. "
            f"{', '.join(own[:-1])} and {own[-1]} have these keys in their files. "
            f"Together these runs took {done:,} of {whole:,} steps, {1 - done / whole:.0%} fewer.",
            table(header, lines),
            f"({machines(rows)}; `python -m benchmarks.solved`)",
        ]
    )


def main() -> None:
    from benchmarks import results

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help=", ".join(CONFIGS))
    torch.set_num_threads(1)
    for name in parser.parse_args().configs or CONFIGS:
        new = [run(name, seed) for seed in range(1, SEEDS + 1)]
        before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
        rows = [*(row for row in before if row["config"] != name), *new]
        FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (results.DOCS / "results.md").write_text(results.page(), encoding="utf-8")
    print(section())


if __name__ == "__main__":
    main()
